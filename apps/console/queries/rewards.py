"""The labels of a trajectory as its page shows them: those that stand, the person's own, and how they add up."""

from dataclasses import dataclass

from django.db.models import Q

from apps.accounts.access import Caller
from apps.accounts.models import Project, Role, User
from apps.console.review_form import Box, tell_label
from apps.console.templatetags.console import signed
from apps.core.errors import NotFound
from apps.feedback.models import Label, LabelQuerySet, Source
from apps.feedback.rewards import score_seen
from apps.feedback.schemas import find_schema
from apps.feedback.score_schema import REWARD_FIELD
from apps.feedback.scoring import explain
from apps.trajectories.blindness import Hidden
from apps.trajectories.models import Trajectory

SHOWN = 50


@dataclass(frozen=True, kw_only=True)
class RewardPanel:
    """The labels that stand, each with what it says in the schema's words and whether this person may take it back,
    their own reward, and the sum in words."""

    labels: list[tuple[Label, Box, bool]]
    is_cut: bool  # there are older ones
    own: Label | None
    n_step_labels: int
    explanation: str


def standing_labels(trajectory: Trajectory) -> LabelQuerySet:
    """Return the labels that say what something is worth, in any field, and that nothing superseded or took back."""
    rows = Label.objects.standing().filter(Q(value__isnull=False) | Q(said__isnull=False), trajectory=trajectory)
    return rows.select_related("author", "key", "grader__grader", "token")


def own_step_values(trajectory: Trajectory, *, user: User) -> dict[str, float]:
    """Return the person's own standing reward of each step, by step id."""
    rows = standing_labels(trajectory).filter(author=user, source=Source.HUMAN, field=REWARD_FIELD, span_start=None)
    rows = rows.exclude(step=None).order_by("pk")
    return {str(label.step_id): label.value for label in rows if label.value is not None}


def read_panel(trajectory: Trajectory, *, caller: Caller, role: Role, hidden: Hidden) -> RewardPanel:
    """Return the labels of the whole trajectory that the caller may see, and the explanation of its reward."""
    seen = standing_labels(trajectory).seen_by(caller, hidden=hidden)
    newest = list(seen.filter(step=None).order_by("-pk")[: SHOWN + 1])
    labels = newest[SHOWN - 1 :: -1]
    own = [label for label in labels if _is_own(label, caller.user) and label.field == REWARD_FIELD]
    n_steps = seen.exclude(step=None).order_by().values("step_id").distinct().count()
    orders = role.includes(Role.TRAINER)
    schema = find_schema(trajectory.project_id)
    known = {spec.name: spec for spec in schema.fields.fields}
    return RewardPanel(
        labels=[(label, tell_label(label, known), orders or _is_own(label, caller.user)) for label in labels],
        is_cut=len(newest) > SHOWN,
        own=own[-1] if own else None,
        n_step_labels=n_steps,
        explanation=explain(
            score_seen(caller, trajectory, schema=schema), words={name: spec.words for name, spec in known.items()}
        ),
    )


def _is_own(label: Label, user: User | None) -> bool:
    return label.author == user and label.source == Source.HUMAN


def find_own_label(project: Project, label_id: str, *, user: User) -> Label:
    """Return a label that the person gave or raise NotFound."""
    rows = Label.objects.select_related("trajectory__project__team", "step", "project")
    label = rows.filter(project=project, pk=label_id, author=user).first()
    if label is None:
        raise NotFound("you gave no such reward")
    return label


def tell_what_counts(reward: float | None, *, before: float | None) -> str:
    """Return what a trajectory counts after something was said of it, or of a step: others may have spoken too."""
    if reward is None:
        return "the trajectory still has no reward" if before is None else "the trajectory has no reward now"
    if reward == before:
        return f"the trajectory's reward stays {signed(reward)}"
    return f"the trajectory's reward is {signed(reward)} now"
