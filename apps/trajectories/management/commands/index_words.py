"""Makes the words of trajectories searchable that were recorded before there was a search. Safe to stop and repeat."""

from typing import Any

from django.core.management.base import BaseCommand
from django.db import transaction

from apps.trajectories.models import Trajectory
from apps.trajectories.search.words import keep_words


class Command(BaseCommand):
    """`manage.py index_words`."""

    help = "Make the words of older trajectories searchable (newer ones are so by themselves)"

    def handle(self, *_args: Any, **_options: Any) -> None:
        """Go from the newest back; what has words already is passed over."""
        n_done = 0
        waiting = Trajectory.objects.filter(texts=None, n_steps__gt=0).order_by("-pk").values_list("pk", flat=True)
        for trajectory_id in waiting.iterator(chunk_size=500):
            n_done += _index(trajectory_id)
        self.stdout.write(f"{n_done} trajectories are searchable now")


@transaction.atomic
def _index(trajectory_id: str) -> int:
    """Index one trajectory unless the recorder, which locks it too, was faster; returns how many that are."""
    trajectory = Trajectory.objects.select_for_update().filter(pk=trajectory_id).first()
    if trajectory is None or trajectory.texts.exists():
        return 0
    keep_words(list(trajectory.steps.order_by("index")))
    return 1
