"""Which trajectories a run may learn from by their labels, whatever their age, and why the others may not. Reads only.

Unlike rewards for policy gradient, labels do not wear out: each run may use them, as often as its recipe says.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Case, CharField, Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce

from apps.feedback.preferences.models import Preference, PreferenceQuerySet
from apps.registry.models import Policy
from apps.training.choices import PAIRED, SFT
from apps.training.models import BatchTrajectory, Run
from apps.training.pool import READY
from apps.training.recipes import RecipeConfig
from apps.training.selection import Selection
from apps.trajectories.blindness import NOTHING, Hidden
from apps.trajectories.models import Step, Trajectory


@dataclass(frozen=True, kw_only=True)
class LabelPool:
    """One run's view of the pool. `run_id` is "" before there is a run. `hidden` is left out, as in `Pool`."""

    policy: Policy
    selection: Selection
    recipe: RecipeConfig
    run_id: str = ""
    hidden: Hidden = NOTHING

    def candidates(self) -> QuerySet[Trajectory]:
        """Return everything that the selection names, in either channel, ready or not."""
        return self.selection.narrow_channels(self._own(Trajectory.objects.all()))

    def ready(self) -> QuerySet[Trajectory]:
        """Return the trajectories that can be learnt from now: those used least first, then the oldest."""
        rows = self.selection.narrow(self._own(Trajectory.objects.settled())).filter(self._fits(), is_excluded=False)
        rows = rows.filter(Exists(usable_steps().filter(trajectory=OuterRef("pk"))))
        counted = rows.annotate(n_uses=self._count_uses())
        return counted.filter(n_uses__lt=int(self.recipe.own("epochs"))).order_by("n_uses", "id")

    def count_by_readiness(self) -> dict[str, int]:
        """Return how many candidates are ready and, by reason, how many are not."""
        readiness = Case(
            When(~Q(channel=self.selection.channel), then=Value("elsewhere")),
            When(~Exists(Trajectory.objects.settled().filter(pk=OuterRef("pk"))), then=Value("open")),
            When(~self._is_labelled(), then=Value("unlabelled")),
            When(is_excluded=True, then=Value("excluded")),
            When(n_uses__gte=int(self.recipe.own("epochs")), then=Value("used")),
            When(~Exists(usable_steps().filter(trajectory=OuterRef("pk"))), then=Value("untrainable")),
            When(~self._fits(), then=Value("alone" if self.recipe.algorithm in PAIRED else "rejected")),
            default=Value(READY),
            output_field=CharField(),
        )
        rows = self.candidates().annotate(n_uses=self._count_uses()).annotate(readiness=readiness)
        counts = rows.order_by().values("readiness").annotate(n=Count("pk"))
        return {row["readiness"]: row["n"] for row in counts}

    def _own(self, rows: QuerySet[Trajectory]) -> QuerySet[Trajectory]:
        return rows.filter(project_id=self.policy.project_id).exclude(pk__in=self.hidden)

    def _is_labelled(self) -> Q:
        return Q(reward__isnull=False) | Q(Exists(_of_row(Preference.objects.standing())))

    def _fits(self) -> Q:
        """What this recipe learns from, beside corrections: what is accepted, what can be compared, or any reward."""
        if self.recipe.algorithm in PAIRED:
            is_compared = Exists(_of_row(Preference.objects.standing().filter(is_tie=False)))
            return Q(is_compared) | Q(Exists(self._comparable()), reward__isnull=False)
        is_corrected = Q(Exists(_of_row(Preference.objects.corrections())))
        if self.recipe.algorithm == SFT:
            good_above = self.recipe.own("good_above")
            good_steps = Step.objects.filter(trajectory=OuterRef("pk"), reward__gt=good_above)
            return is_corrected | Q(reward__gt=good_above) | Q(Exists(good_steps))
        return is_corrected | Q(reward__isnull=False)

    def _comparable(self) -> QuerySet[Trajectory]:
        """Other tries at a trajectory's prompt that were worth more or less."""
        tries = Trajectory.objects.filter(project_id=self.policy.project_id, is_excluded=False, deleted_at=None)
        tries = tries.exclude(pk__in=self.hidden)
        gap = self.recipe.own("min_gap")
        is_apart = Q(reward__gte=OuterRef("reward") + gap) | Q(reward__lte=OuterRef("reward") - gap)
        return tries.filter(is_apart, group=OuterRef("group")).exclude(group="")

    def _count_uses(self) -> Coalesce:
        uses = BatchTrajectory.objects.filter(trajectory=OuterRef("pk"), batch__run_id=self.run_id, is_active=True)
        counted = uses.order_by().values("trajectory").annotate(n=Count("pk")).values("n")
        return Coalesce(Subquery(counted), 0)


def _of_row(preferences: PreferenceQuerySet) -> PreferenceQuerySet:
    return preferences.filter(trajectory=OuterRef("pk"))


def usable_steps() -> QuerySet[Step]:
    """Return the steps that `batching.label_discard_reason` lets pass."""
    whole = Step.objects.filter(status="complete", is_excluded=False, side_call="")
    return whole.filter(Q(n_completion_tokens__gt=0) | Q(is_exact=False))


def count_uses(run: Run) -> Mapping[str, int]:
    """Return how often the run has used each trajectory, by its id."""
    entries = BatchTrajectory.objects.filter(batch__run=run, is_active=True)
    counts = entries.order_by().values(row=F("trajectory_id")).annotate(n=Count("pk"))
    return {each["row"]: each["n"] for each in counts}
