"""`manage.py down`: stops the platform that runs in this data directory, from another terminal."""

import os
import signal
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from clawplatform.env import read_env
from worker.host.lock import find_holder

STOP_S = 180


class Command(BaseCommand):
    help = "Stop the platform that runs in this data directory, and wait until it has stopped."
    requires_system_checks: list[str] = []

    def handle(self, *_args: Any, **_options: Any) -> None:
        data_dir = read_env().data_dir
        pid = find_holder(data_dir)
        if pid is None:
            self.stdout.write(f"nothing runs in {data_dir}")
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while find_holder(data_dir) is not None:
            if time.monotonic() > deadline:
                raise CommandError(f"process {pid} still runs after {STOP_S} s; see the logs in {data_dir / 'logs'}")
            time.sleep(0.2)
        self.stdout.write("stopped")
