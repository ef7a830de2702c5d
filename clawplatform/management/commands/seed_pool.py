"""`manage.py seed_pool`: a large made-up pool in a project, for measuring. Goes on where it was stopped."""

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.accounts.models import Project
from clawplatform.pool_seeding import Plan, seed_pool
from clawplatform.seeding import SAMPLE_PROJECT


class Command(BaseCommand):
    help = "Fill a project's pool with made-up trajectories, for measuring; run it again to go on or to make more."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--project", default=SAMPLE_PROJECT, help="the project's slug")
        parser.add_argument("--trajectories", type=int, default=20_000, help="how many there are to be at the end")
        parser.add_argument("--steps", type=int, default=10, help="of each trajectory")

    def handle(self, *_args: Any, **options: Any) -> None:
        plan = Plan(n_trajectories=options["trajectories"], n_steps=options["steps"])
        if min(plan.n_trajectories, plan.n_steps) < 1:
            raise CommandError("--trajectories and --steps must be at least 1")
        project = Project.objects.filter(slug=options["project"]).first()
        if project is None:
            raise CommandError(f"there is no project {options['project']!r}; manage.py create_project makes one")
        start, first = time.monotonic(), None
        for n_done in seed_pool(project, plan):
            first = first or n_done
            rate = (n_done - first) / max(time.monotonic() - start, 0.001)
            left_s = (plan.n_trajectories - n_done) / rate if rate else 0
            self.stdout.write(f"{n_done:,} of {plan.n_trajectories:,} trajectories, {left_s:,.0f} s left")
        self.stdout.write(f"{project.slug} has {plan.n_trajectories:,} made-up trajectories; ANALYZE before measuring")
