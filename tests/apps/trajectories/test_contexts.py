"""Contexts kept in memory are those of the pool, and take no more room than they may."""

import pytest

from apps.accounts.models import ApiKey
from apps.trajectories import shared_rows
from apps.trajectories.contexts import ContextCache
from apps.trajectories.models import Step
from apps.trajectories.recorder import fold_pending
from apps.trajectories.trie import Context, load_context
from tests.factories.trajectories import ExchangeFactory, StepFactory


def context(token: int) -> Context:
    return Context(prompt=bytes([token, 0, 0, 0]))


def test_those_not_used_for_longest_make_room() -> None:
    cache = ContextCache(max_bytes=30)
    for number, name in enumerate("abc"):
        cache.keep(name, context(number), n_bytes=10)
    assert cache.find("a") == context(0)
    cache.keep("d", context(3), n_bytes=10)
    assert (cache.is_kept("a"), cache.is_kept("b"), cache.is_kept("d")) == (True, False, True)
    assert cache.n_bytes == 30


def test_what_is_too_large_is_not_kept() -> None:
    cache = ContextCache(max_bytes=30)
    cache.keep("a", context(1), n_bytes=10)
    cache.keep("b", context(2), n_bytes=31)
    cache.keep("a", context(1), n_bytes=10)
    assert (cache.is_kept("a"), cache.is_kept("b"), cache.n_bytes) == (True, False, 10)


@pytest.mark.django_db
def test_what_is_not_kept_is_read_from_the_pool() -> None:
    step = StepFactory.create()
    assert ContextCache().find(step.id) == load_context(step.id)


@pytest.mark.django_db
def test_the_recorder_keeps_what_the_pool_would_give(key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ContextCache()
    monkeypatch.setattr(shared_rows, "_contexts", cache)
    history = [{"role": "user", "content": "a", "odd": 1.0}]
    for turn in range(3):
        ExchangeFactory.create(key=key, messages=history, prompt_ids=[1, 2, 3] + [4, 5, 9] * turn)
        history = [*history, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "b"}]
    fold_pending()
    steps = Step.objects.order_by("index")
    assert [bool(step.parent_id) for step in steps] == [False, True, True]
    assert all(cache.is_kept(step.id) for step in steps)
    assert all(cache.find(step.id) == load_context(step.id) for step in steps)
