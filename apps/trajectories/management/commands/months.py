"""`manage.py months`: lists the months of the pool, and lets go of old ones."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from apps.core.errors import ServiceError
from apps.trajectories.months import CALLS, STEMS, TABLES, Part, go_back, list_ended_parts, list_parts
from apps.trajectories.retention import drop_calls, drop_trajectories


class Command(BaseCommand):
    """Without options it lists; `--drop` says what would go, and with `--yes` it goes."""

    help = "List the months of the pool, or drop those that are older than --keep months."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--drop", choices=["calls", "all"], help="raw calls alone, or trajectories and steps too")
        parser.add_argument("--keep", type=int, default=12, help="whole months before this one that stay (12)")
        parser.add_argument("--even-in-datasets", action="store_true", help="drop what is in a dataset too")
        parser.add_argument("--yes", action="store_true", help="do it: nobody can take it back")

    def handle(self, *_args: Any, **options: Any) -> None:
        if options["drop"] is None:
            self._print([part for table in TABLES for part in list_parts(table)])
            return
        if options["keep"] < 1:
            raise CommandError("--keep is 1 or more: this month and the one before always stay")
        before = go_back(timezone.now(), n_months=options["keep"])
        tables = TABLES if options["drop"] == "all" else (CALLS, STEMS)
        parts = [part for table in tables for part in list_ended_parts(table, before=before)]
        self._print(parts)
        if not options["yes"]:
            self.stdout.write(f"{len(parts)} months from before {before:%Y-%m} would go for good: add --yes")
            return
        try:
            if options["drop"] == "all":
                drop_trajectories(before=before, even_in_datasets=options["even_in_datasets"])
            drop_calls(before=before)
        except ServiceError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"{len(parts)} months from before {before:%Y-%m} are gone")

    def _print(self, parts: list[Part]) -> None:
        self.stdout.write(f"{'part':34}{'rows, about':>14}{'MB':>10}")
        for part in parts:
            self.stdout.write(f"{part.name:34}{part.n_rows:>14,}{part.n_bytes / 1e6:>10,.1f}")
