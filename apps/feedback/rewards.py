"""Rewards kept true: labels are summed up for one trajectory or for many, and the sums are stored with them.

Knows labels and the schema in force; the arithmetic is in `scoring.py`.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from apps.accounts.access import Caller
from apps.core.live import publish_many, publish_news
from apps.feedback.models import Label, LabelQuerySet
from apps.feedback.schemas import ProjectSchema, find_schema
from apps.feedback.scoring import Judgement, Score, Weighing, score_trajectory
from apps.trajectories.blindness import find_hidden
from apps.trajectories.models import Trajectory
from apps.trajectories.services import set_reward, set_rewards


def score_labels(*, trajectory: Trajectory, schema: ProjectSchema | None = None) -> Score:
    """Return what the trajectory's current labels add up to; `schema` is the one in force, if it is known."""
    schema = schema or find_schema(trajectory.project_id)
    return _score(_counting([trajectory.pk], schema), schema)


def score_seen(caller: Caller, trajectory: Trajectory, *, schema: ProjectSchema | None = None) -> Score:
    """Return what those of the trajectory's labels add up to that the caller may see now."""
    schema = schema or find_schema(trajectory.project_id)
    return _score(_counting([trajectory.pk], schema).seen_by(caller, hidden=find_hidden(caller)), schema)


def recompute(trajectory: Trajectory, *, schema: ProjectSchema | None = None, with_steps: bool = True) -> Score:
    """Store what the labels of a (locked) trajectory add up to, and tell open pages. Not `with_steps`: nothing new was
    said of any step, so what they are worth stays."""
    score = score_labels(trajectory=trajectory, schema=schema)
    set_reward(trajectory, score.reward, step_rewards=score.step_rewards if with_steps else None)
    publish_news(trajectory.project_id, kind="trajectory", object_id=trajectory.pk)
    return score


def recompute_many(trajectories: Sequence[Trajectory]) -> int:
    """Do the same for (locked) trajectories of one project in a few queries; returns how many were changed."""
    if not trajectories:
        return 0
    scores = score_many(trajectories)
    step_rewards = {step: reward for score in scores.values() for step, reward in score.step_rewards.items()}
    rewards = {row.pk: scores[row.pk].reward if row.pk in scores else None for row in trajectories}
    publish_many({trajectory.pk: trajectory.project_id for trajectory in trajectories}, kind="trajectory")
    return set_rewards(rewards, step_rewards=step_rewards)


def score_many(trajectories: Sequence[Trajectory]) -> dict[str, Score]:
    """Return by id what the current labels of trajectories of one project add up to; those without any are left out."""
    if not trajectories:
        return {}
    schema = find_schema(trajectories[0].project_id)
    labels = _counting([trajectory.pk for trajectory in trajectories], schema)
    return {pk: _score(group, schema) for pk, group in groupby(labels, key=lambda label: label.trajectory_id)}


def _counting(trajectory_ids: Sequence[str], schema: ProjectSchema) -> LabelQuerySet:
    """Return the standing labels of fields that count, by trajectory, the oldest first."""
    names = [spec.name for spec in schema.fields.fields if spec.weight > 0]
    labels = Label.objects.standing().filter(trajectory__in=trajectory_ids, field__in=names)
    needed = ("source", "value", "said", "field", "step_id", "span_start", "span_end", "trajectory_id")
    return labels.only(*needed).order_by("trajectory_id", "id")


def _score(labels: Iterable[Label], schema: ProjectSchema) -> Score:
    weighing = Weighing(fields={spec.name: spec.weight for spec in schema.fields.fields}, trust=schema.fields.trust)
    judgements = []
    for label in labels:
        worth = schema.fields.reward_of(field=label.field, value=label.value, said=label.said)
        if worth is not None:
            judgements.append(
                Judgement(source=label.source, value=worth, field=label.field, step_id=label.step_id, span=label.span)
            )
    return score_trajectory(judgements, weighing)
