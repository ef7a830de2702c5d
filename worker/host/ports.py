"""Says clearly when a port is taken, and by whom where the system tells."""

import socket

import psutil

from worker.host.errors import HostError


def check_free(host: str, port: int, *, wanted_for: str, setting: str) -> None:
    """Raise HostError when nothing can listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server itself will do
        try:
            probe.bind((host, port))
        except OSError as error:
            owner = find_owner(port)
            by = f" by {owner}" if owner else ""
            raise HostError(
                f"port {port} on {host}, wanted for the {wanted_for}, is not free: it is taken{by} ({error.strerror}). "
                f"Stop that process (`make stop` in its folder if it is a Claw Platform), or choose another "
                f"port with {setting}"
            ) from error


def find_owner(port: int) -> str | None:
    """Return `name (process id)` of the process that listens on a port, None where the system does not tell."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:  # macOS tells root only
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            return _name_process(connection.pid)
    return None


def _name_process(pid: int | None) -> str | None:
    if pid is None:
        return None
    try:
        process = psutil.Process(pid)
        return f"process {pid} ({' '.join(process.cmdline())[:100] or process.name()})"
    except psutil.Error:
        return f"process {pid}"
