"""What can go wrong with the processes on this host, always said with what to do next."""


class HostError(RuntimeError):
    """A process or service of this host cannot be started or reached; the message is for the person who started it."""
