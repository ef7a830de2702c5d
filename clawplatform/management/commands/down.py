"""`manage.py down`: stops the platform that runs in this data directory, from another terminal."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from clawplatform.env import read_env
from worker.host.errors import HostError
from worker.host.leftovers import find_leftovers, stop_leftovers
from worker.host.lock import find_holder, hold
from worker.host.supervisor import Supervisor

STOP_S = 180


class Command(BaseCommand):
    help = "Stop the platform that runs in this data directory, or what is left of it, and wait until it has stopped."
    requires_system_checks: list[str] = []

    def handle(self, *_args: Any, **_options: Any) -> None:
        data_dir = read_env().data_dir
        pid = find_holder(data_dir)
        if pid is None:
            self._end_leftovers(data_dir, otherwise=f"nothing runs in {data_dir}")
            return
        running = _list_running(data_dir)
        self.stdout.write(f"stopping the platform in {data_dir} (process {pid}): {', '.join(sorted(running))}")
        self.stdout.flush()
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGTERM)
        began_at = time.monotonic()
        while find_holder(data_dir) is not None:
            if time.monotonic() > began_at + STOP_S:
                raise CommandError(f"process {pid} still runs after {STOP_S} s; see the logs in {data_dir / 'logs'}")
            time.sleep(0.2)
            running = self._tell_ends(running, _list_running(data_dir), began_at=began_at)
        self._tell_ends(running, _list_running(data_dir), began_at=began_at)
        self._end_leftovers(data_dir, otherwise="stopped")

    def _end_leftovers(self, data_dir: Path, *, otherwise: str) -> None:
        """End the programs of a platform that was killed, which run on by themselves; say so, or `otherwise`."""
        if not find_leftovers(data_dir):
            self.stdout.write(otherwise)
            return
        self.stdout.write(f"the platform in {data_dir} was killed: ending what it left behind")
        self.stdout.flush()
        try:
            with hold(data_dir):
                self.stdout.write(f"stopped: {', '.join(stop_leftovers(data_dir))}")
        except HostError as error:
            raise CommandError(str(error)) from error

    def _tell_ends(self, before: set[str], now: set[str], *, began_at: float) -> set[str]:
        """Say what has stopped meanwhile; return what has not."""
        for name in sorted(before - now):
            self.stdout.write(f"[{time.monotonic() - began_at:6.1f} s] {name}: stopped")
            self.stdout.flush()
        return before & now


def _list_running(data_dir: Path) -> set[str]:
    """Return the programs that have not stopped; none where supervisord does not run yet, or any more."""
    try:
        return Supervisor(data_dir).list_running()
    except HostError:
        return set()
