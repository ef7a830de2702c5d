"""Which trajectories a run may train on now, and why the others may not. Reads only; taking is in `lending`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Case, CharField, Count, Exists, OuterRef, Q, QuerySet, Value, When

from apps.registry.models import Policy, Version
from apps.training.hints import has_hint
from apps.training.models import BatchTrajectory
from apps.training.selection import Selection
from apps.trajectories.blindness import NOTHING, Hidden
from apps.trajectories.models import Step, Trajectory

READY = "ready"
REASONS: Mapping[str, str] = {
    "elsewhere": "in the other channel",
    "open": "still open or being recorded",
    "unlabelled": "without a reward",
    "unhinted": "without a hint, a comment or a correction of a step",
    "excluded": "kept out by a person",
    "used": "trained on before",
    "untrainable": "without a step to train on (tokens not exact, not sampled freely, kept out, side calls)",
    "stale": "spoken by versions that are too old or from another line",
    "rejected": "not rewarded enough, and not corrected",
    "alone": "with no other rewarded try at their prompt, and not corrected",
}


@dataclass(frozen=True, kw_only=True)
class Pool:
    """One run's view of the pool.

    `line` maps the version in training (distance 0) and its ancestors, up to the recipe's staleness cap, to their
    distance. A step spoken by any other version is stale. `hidden` is left out: of whoever looks or launched the run,
    what they review blind.
    """

    policy: Policy
    selection: Selection
    line: Mapping[str, int]
    learns_from_hints: bool = False
    hidden: Hidden = NOTHING

    def candidates(self) -> QuerySet[Trajectory]:
        """Return everything that the selection names, in either channel, ready or not."""
        return self.selection.narrow_channels(self._own(Trajectory.objects.all()))

    def ready(self) -> QuerySet[Trajectory]:
        """Return the trajectories that can be trained on now, oldest first."""
        rows = self.selection.narrow(self._own(Trajectory.objects.settled()))
        rows = rows.filter(self._is_labelled(), is_excluded=False, n_steps__gt=0)
        return rows.filter(~Exists(self._uses()), Exists(self._fresh_steps())).order_by("id")

    def count_by_readiness(self) -> dict[str, int]:
        """Return how many candidates are ready and, by reason, how many are not."""
        readiness = Case(
            When(~Q(channel=self.selection.channel), then=Value("elsewhere")),
            When(~Exists(Trajectory.objects.settled().filter(pk=OuterRef("pk"))), then=Value("open")),
            When(~self._is_labelled(), then=Value("unhinted" if self.learns_from_hints else "unlabelled")),
            When(is_excluded=True, then=Value("excluded")),
            When(Exists(self._uses()), then=Value("used")),
            When(~Exists(trainable_steps().filter(trajectory=OuterRef("pk"))), then=Value("untrainable")),
            When(~Exists(self._fresh_steps()), then=Value("stale")),
            default=Value(READY),
            output_field=CharField(),
        )
        rows = self.candidates().annotate(readiness=readiness).order_by().values("readiness")
        return {row["readiness"]: row["n"] for row in rows.annotate(n=Count("pk"))}

    def _own(self, rows: QuerySet[Trajectory]) -> QuerySet[Trajectory]:
        return rows.filter(project_id=self.policy.project_id).exclude(pk__in=self.hidden)

    def _is_labelled(self) -> Q:
        return has_hint() if self.learns_from_hints else Q(reward__isnull=False)

    def _uses(self) -> QuerySet[BatchTrajectory]:
        return BatchTrajectory.objects.filter(trajectory=OuterRef("pk"), policy=self.policy, use="", is_active=True)

    def _fresh_steps(self) -> QuerySet[Step]:
        return trainable_steps().filter(trajectory=OuterRef("pk"), version__in=list(self.line))


def lock_rows(ready: QuerySet[Trajectory], ids: Collection[str]) -> list[Trajectory]:
    """Return those of the ready ones, locked, by id; [] when another transaction holds or has taken one.

    What is chosen by looking at all that is ready is locked alone: a pool may be large.
    """
    rows = list(ready.filter(pk__in=ids).order_by("id").select_for_update(of=("self",), skip_locked=True))
    return rows if len(rows) == len(ids) else []


def trainable_steps() -> QuerySet[Step]:
    """Return the steps that `batching.discard_reason` lets pass in any fresh trajectory."""
    return Step.objects.for_training().filter(temperature__gt=0, top_p__gte=1, top_k__lte=0)


def trace_line(version: Version, *, max_staleness: int) -> dict[str, int]:
    """Return `version` and its nearest ancestors, each with its distance, 0 to `max_staleness`."""
    line: dict[str, int] = {}
    current: Version | None = version
    while current is not None and len(line) <= max_staleness:
        line[current.id] = len(line)
        current = current.parent
    return line


def describe_counts(counts: Mapping[str, int]) -> str:
    """Return the counts in words: "12 still open, 3 without a reward"."""
    parts = [f"{counts[reason]} {words}" for reason, words in REASONS.items() if counts.get(reason)]
    return ", ".join(parts) or "the selection matches no trajectory at all"


def describe_open() -> str:
    """Return what makes an open trajectory one to train on."""
    return (
        "complete the open ones on their pages, many at once by “complete” in the list of trajectories, or by "
        f"POST /api/v1/trajectories/{{id}}/complete; or wait: without a call for {settings.CLAW.idle_close_s} s one "
        "completes by itself"
    )
