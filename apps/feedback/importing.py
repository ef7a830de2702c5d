"""Rewards that came with imported trajectories: they become labels, so that later judgements are weighed with them."""

from django.db import transaction

from apps.feedback.models import Label, Source
from apps.feedback.rewards import score_labels
from apps.trajectories.models import Trajectory
from apps.trajectories.services import set_rewards


@transaction.atomic
def reward_imported(*, trajectory: Trajectory, reward: float | None, step_rewards: dict[str, float], note: str) -> None:
    """Label a fresh trajectory and its steps (by id) with what they came with; `note` says where from.

    The trajectory itself is labelled only where its steps do not add up to its reward anyway.
    """
    if reward is None and not step_rewards:
        return
    Label.objects.bulk_create(
        [_make_label(trajectory, value, note, step_id=step_id) for step_id, value in step_rewards.items()],
        batch_size=500,
    )
    score = score_labels(trajectory=trajectory)
    if reward is not None and score.reward != reward:
        _make_label(trajectory, reward, note).save(force_insert=True)
        score = score_labels(trajectory=trajectory)
    set_rewards(trajectory=trajectory, reward=score.reward, step_rewards=score.step_rewards)


def _make_label(trajectory: Trajectory, value: float, note: str, *, step_id: str | None = None) -> Label:
    return Label(
        project_id=trajectory.project_id,
        trajectory=trajectory,
        step_id=step_id,
        value=value,
        text=note,
        source=Source.ENVIRONMENT,
    )
