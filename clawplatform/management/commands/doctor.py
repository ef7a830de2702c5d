"""`manage.py doctor`: says what is wrong on this host and what to do about it; exit code 1 when something is."""

import sys
from typing import Any

from django.core.management.base import BaseCommand

from clawplatform.doctor import examine
from clawplatform.env import read_env


class Command(BaseCommand):
    help = "Check versions, services, engine, GPU and disk, and say what to do about each fault."
    requires_system_checks: list[str] = []

    def handle(self, *_args: Any, **_options: Any) -> None:
        marks = {
            "ok": self.style.SUCCESS("ok   "),
            "note": self.style.WARNING("note "),
            "fault": self.style.ERROR("FAULT"),
        }
        n_faults = 0
        for finding in examine(read_env()):
            n_faults += finding.level == "fault"
            self.stdout.write(f"{marks[finding.level]} {finding.about:<12} {finding.words}")
        if n_faults:
            self.stderr.write(f"{n_faults} fault{'s' if n_faults > 1 else ''}")
            sys.exit(1)
