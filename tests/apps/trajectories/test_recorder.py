"""Folding exchanges into trajectories and steps."""

import pytest

from apps.accounts.models import ApiKey
from apps.trajectories.models import Exchange, Step, Trajectory
from apps.trajectories.recorder import fold_pending
from apps.trajectories.trie import load_steps
from tests.factories.trajectories import ExchangeFactory

pytestmark = pytest.mark.django_db


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_it_folds_two_turns_into_one_trajectory(key: ApiKey) -> None:
    ExchangeFactory.create(key=key, messages=[user("hello")], answers=[{"content": "hi"}])
    ExchangeFactory.create(
        key=key,
        messages=[user("hello"), assistant("hi"), user("and now?")],
        prompt_ids=[1, 2, 3, 4, 5, 6],
        completions=[[7]],
    )

    assert fold_pending() == 2

    trajectory = Trajectory.objects.get()
    first, second = load_steps(trajectory)
    assert trajectory.title == "hello"
    assert (trajectory.n_steps, trajectory.n_prompt_tokens, trajectory.n_completion_tokens) == (2, 9, 3)
    assert second.row.parent_id == first.row.id
    assert second.row.shared_tokens == 5
    assert second.prompt_ids == [1, 2, 3, 4, 5, 6]
    assert second.messages == [user("hello"), assistant("hi"), user("and now?")]
    assert first.logprobs == [-0.5, -0.5]
    assert not Exchange.objects.unfolded().exists()
    assert fold_pending() == 0
    assert Step.objects.count() == 2
