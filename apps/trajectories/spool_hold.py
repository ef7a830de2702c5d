"""Holds folding back while gateways keep calls on this host's disk that Postgres does not have yet.

Of a conversation's turns a later one may reach Postgres before an earlier one that waits in the spool; folded at once
it would never find its parent. Knows that the spool's files are there, not what is in them (`apps.gateway.spool`), and
only of gateways that share the recorder's data directory.
"""

import time
from pathlib import Path

import structlog
from django.conf import settings

from apps.core.contracts.exchange import SPOOL_FOLDER, SPOOL_SUFFIX

log = structlog.get_logger(__name__)

LONGEST_S = 60.0  # a spool that is not replayed for longer must not stop everything
_LONGEST_GAP_S = 2.0


class SpoolHold:
    """Says whether to wait. Time in which nobody asks counts for little: Postgres was away, nothing was replayed."""

    def __init__(self) -> None:
        self._asked_at = 0.0
        self._waited_s = 0.0

    def is_on(self) -> bool:
        """Say whether to wait. Ask it before and after reading what is to be folded."""
        if not _is_anything_spooled(settings.CLAW.data_dir / SPOOL_FOLDER):
            self._waited_s = 0.0
            return False
        now = time.monotonic()
        waited_s = self._waited_s + min(now - self._asked_at, _LONGEST_GAP_S)
        if self._waited_s < LONGEST_S <= waited_s:
            log.warning("recorder.spool_is_not_replayed", waited_s=LONGEST_S)
        self._asked_at, self._waited_s = now, waited_s
        return waited_s < LONGEST_S


def _is_anything_spooled(folder: Path) -> bool:
    return next(folder.glob(f"*{SPOOL_SUFFIX}"), None) is not None
