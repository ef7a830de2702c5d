"""Questions that are asked of many exchanges, trajectories or steps. Knows rows only."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Exists, OuterRef, Q, Subquery
from django.db.models.lookups import IsNull
from django.utils import timezone

from apps.accounts.models import Project
from apps.core.ids import first_id
from apps.trajectories.copying import run_statement
from apps.trajectories.stems import LONGEST_USE

if TYPE_CHECKING:
    from apps.trajectories.models import Exchange, Step, Trajectory  # noqa: F401 (the models import this file)


_FOR_PLACING = (
    "parent_id",
    "answer_digests",
    "chain",
    "side_call",
    "started_at",
    "ended_at",
    "is_excluded",
    "trajectory__completed_at",
)
_LONG = ("tail_token_ids", "completion_token_ids", "logprobs", "tail_messages", "answer", "answer_digests")


# Digest by digest: Postgres takes each for one that a two-hundredth of all steps have, and for some hundreds at once
# would read the whole table.
_WITH_DIGEST = """
    SELECT DISTINCT found.id FROM unnest(%b::varchar[]) digest
    CROSS JOIN LATERAL (SELECT id FROM trajectories_step WHERE answer_digests @> ARRAY[digest] OFFSET 0) found
"""


class ExchangeQuerySet(models.QuerySet["Exchange"]):
    def unfolded(self) -> "ExchangeQuerySet":
        """What the recorder has still to look at, in the order in which the calls began."""
        return self.filter(folded_at=None).order_by("id")

    def set_aside(self) -> "ExchangeQuerySet":
        """What could not be folded; `fold_error` says why."""
        return self.exclude(fold_error="")

    def delete_with_stems(self) -> None:
        """Remove the calls, and of their stems those that no other call needs."""
        from apps.trajectories.models import Exchange, Stem  # noqa: PLC0415 (the models import this file)

        stems = set(self.exclude(stem=None).values_list("stem_id", flat=True))
        self.delete()
        left = Exchange.objects.filter(stem=OuterRef("pk"))
        settled = first_id("stem", timezone.now() - 2 * LONGEST_USE)  # a younger one may get calls still
        Stem.objects.filter(~Exists(left), pk__in=stems, pk__lt=settled).delete()


class TrajectoryQuerySet(models.QuerySet["Trajectory"]):
    def of_project(self, project: Project) -> "TrajectoryQuerySet":
        """The project's, with what every list shows of them."""
        return self.filter(project=project, deleted_at=None).select_related("agent").prefetch_related("tags")

    def open_at(self, moment: datetime) -> "TrajectoryQuerySet":
        """Those that a call which ended then belongs to: open still, or closed later."""
        return self.filter(Q(completed_at=None) | Q(completed_at__gte=moment))

    def idle_since(self, moment: datetime) -> "TrajectoryQuerySet":
        """Open ones in which nothing has happened after `moment`."""
        return self.filter(state="open", last_step_at__lt=moment)

    def settled(self) -> "TrajectoryQuerySet":
        """Complete, and none of the agent's calls from before the end is still to be folded."""
        from apps.trajectories.models import Exchange  # noqa: PLC0415 (the models import this file)

        pending = Exchange.objects.filter(
            Q(trajectory_id=OuterRef("id")) | Q(trajectory_id="", session_key=OuterRef("session_key")),
            folded_at=None,
            agent_id=OuterRef("agent_id"),
            started_at__lte=OuterRef("completed_at"),
        )
        return self.filter(~Exists(pending), state="complete", deleted_at=None)

    def for_training(self, *, channel: str = "train") -> "TrajectoryQuerySet":
        """Settled trajectories of a channel that have a reward and that nobody keeps out."""
        return self.settled().filter(channel=channel, reward__isnull=False, is_excluded=False, n_steps__gt=0)


class StepQuerySet(models.QuerySet["Step"]):
    def in_short(self) -> "StepQuerySet":
        """Without what was said, its tokens and what they are found by, which may be long."""
        return self.defer(*_LONG)

    def found_by(self, digests: Sequence[str]) -> "StepQuerySet":
        """Steps that have any of the digests of `sessions.step_digests`; their ids are read at once."""
        return self.filter(pk__in=[pk for (pk,) in run_statement(_WITH_DIGEST, [list(digests)])])

    def for_placing(self) -> "StepQuerySet":
        """What placing needs of them and of their trajectory's end, with `is_leaf`: no step of the main chain goes on
        from it. Leaves come first, so that of many equal conversations the first few are worth looking at; then the
        latest."""
        # Its first row, not whether it exists: for that Postgres may read all steps that go on from any.
        child = self.model.objects.filter(parent_id=OuterRef("id"), side_call="").values("id")[:1]
        return (
            self.select_related("trajectory")
            .only(*_FOR_PLACING)
            .annotate(is_leaf=IsNull(Subquery(child), True))
            .order_by("-is_leaf", "-started_at", "-id")
        )

    def in_trajectories_open_at(self, moment: datetime) -> "StepQuerySet":
        """Steps of trajectories that a call which ended then may go on with."""
        return self.filter(Q(trajectory__completed_at=None) | Q(trajectory__completed_at__gte=moment))

    def for_training(self) -> "StepQuerySet":
        """Whole, exact, freely sampled calls of the main chain that nobody keeps out."""
        return self.filter(
            status="complete",
            is_exact=True,
            constraints="",
            is_excluded=False,
            side_call="",
            n_completion_tokens__gt=0,
        )
