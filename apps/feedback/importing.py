"""Rewards that came with imported trajectories: they become labels, so that later judgements are weighed with them."""

from collections.abc import Iterable, Sequence

from django.db import transaction

from apps.feedback.models import Label, Source
from apps.feedback.rewards import recompute_many, score_many
from apps.trajectories.datasets.incoming import Rewarded
from apps.trajectories.models import Trajectory


@transaction.atomic
def reward_imported(given: Sequence[Rewarded], *, note: str) -> None:
    """Label fresh trajectories of one project and their steps with what they came with; `note` says where from.

    A trajectory itself is labelled only where its steps do not add up to its reward anyway.
    """
    given = [one for one in given if one.reward is not None or one.step_rewards]
    rows = [one.trajectory for one in given]
    _add_labels(
        _make_label(one.trajectory, value, note, step_id)
        for one in given
        for step_id, value in one.step_rewards.items()
    )
    scores = score_many(rows)
    sums = {pk: score.reward for pk, score in scores.items()}
    _add_labels(
        _make_label(one.trajectory, one.reward, note)
        for one in given
        if one.reward is not None and sums.get(one.trajectory.pk) != one.reward
    )
    recompute_many(rows)


def _add_labels(labels: Iterable[Label]) -> None:
    Label.objects.bulk_create(labels, batch_size=500)


def _make_label(trajectory: Trajectory, value: float, note: str, step_id: str | None = None) -> Label:
    return Label(
        project_id=trajectory.project_id,
        trajectory=trajectory,
        step_id=step_id,
        value=value,
        text=note,
        source=Source.ENVIRONMENT,
    )
