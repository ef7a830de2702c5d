"""Notices that a vLLM server lives on while its engine is dead: it has closed its port, or says 503, and never ends.

A server that is only slow takes the connection and lets the caller wait; that is no sign of death.
"""

import http.client
import time

ASK_EVERY_S = 5.0
DEAD_AFTER_S = 30.0  # of nothing but bad answers, once there was a good one


class HealthWatch:
    """Asks the `/health` of the server on a port of this host. `was_well`: there was a good answer."""

    def __init__(self, port: int, *, dead_after_s: float = DEAD_AFTER_S) -> None:
        self._port = port
        self._dead_after_s = dead_after_s
        self.was_well = False
        self._bad_since: float | None = None

    def is_dead(self) -> bool:
        """Ask once; say whether it has been dead for too long to come back. A server that never was well starts."""
        if not self._is_bad():
            self._bad_since = None
            return False
        if not self.was_well:
            return False
        now = time.monotonic()
        self._bad_since = self._bad_since or now
        return now - self._bad_since >= self._dead_after_s

    def _is_bad(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ASK_EVERY_S)
        try:
            connection.request("GET", "/health")
            is_bad = connection.getresponse().status >= http.client.INTERNAL_SERVER_ERROR
        except TimeoutError:
            return False
        except (OSError, http.client.HTTPException):
            return True
        finally:
            connection.close()
        self.was_well = self.was_well or not is_bad
        return is_bad
