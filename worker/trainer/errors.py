"""Errors of the trainer that are meant for a person: their text becomes the message of the event `failed`."""


class TrainerError(Exception):
    """Training cannot go on; the message says why and, where it can, what to do."""


class BatchError(TrainerError):
    """A batch that must not be trained on."""


class StopRequested(Exception):
    """SIGTERM or `inbox/stop` arrived; the step in hand is abandoned, the last finished one is safe."""
