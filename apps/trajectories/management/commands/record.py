"""`manage.py record`: folds exchanges as they come, until it is told to stop. Lives through restarts of Postgres."""

import gc
import signal
import time
from types import FrameType
from typing import Any

import psycopg
import structlog
from django.core.management.base import BaseCommand, CommandParser
from django.db import Error, connection

from apps.trajectories.exchange_log import CHANNEL
from apps.trajectories.recorder import fold_pending

log = structlog.get_logger(__name__)

POLL_S = 1.0  # a notice may be lost; the ledger is asked anyway
MAX_PAUSE_S = 5.0
COLLECT_AFTER = (50_000, 50, 50)  # objects; times the generation before


class Command(BaseCommand):
    """Folds exchanges into trajectories and steps."""

    help = "Fold exchanges into trajectories and steps as they come (runs until SIGTERM)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="fold what is there and exit")

    def handle(self, *_args: Any, **options: Any) -> None:
        if options["once"]:
            while fold_pending():
                pass
            return
        self.is_stopping = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        # What is loaded stays, and what is kept in memory is parsed JSON, of which there is much and none in circles:
        # walking through it would take a fifth of the time.
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)
        log.info("recorder.started")
        self._run()
        log.info("recorder.stopped")

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        log.info("recorder.stopping", signal=number)
        self.is_stopping = True  # Looked at after each round: the exchange in hand is finished.

    def _run(self) -> None:
        pause_s = POLL_S / 4
        while not self.is_stopping:
            try:
                with self._listen() as listener:
                    pause_s = POLL_S / 4
                    self._fold_while_connected(listener)
            except (Error, psycopg.Error) as error:
                log.warning("recorder.waiting_for_postgres", error=str(error).strip(), pause_s=pause_s)
                connection.close()
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, MAX_PAUSE_S)

    def _listen(self) -> "psycopg.Connection[Any]":
        """Open the connection that hears of new exchanges; the ORM has its own."""
        listener: psycopg.Connection[Any] = psycopg.connect(**connection.get_connection_params(), autocommit=True)
        listener.execute(f"LISTEN {CHANNEL}")
        return listener

    def _fold_while_connected(self, listener: "psycopg.Connection[Any]") -> None:
        while not self.is_stopping:
            if not fold_pending():
                for _ in listener.notifies(timeout=POLL_S, stop_after=1):
                    pass
