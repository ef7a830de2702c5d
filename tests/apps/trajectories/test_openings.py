"""What many conversations begin with is stored once, and every one of them comes back exactly."""

from typing import Any

import pytest

from apps.accounts.models import ApiKey
from apps.trajectories import openings
from apps.trajectories.least_used import LeastUsed
from apps.trajectories.models import Exchange, Opening, Step, Trajectory
from apps.trajectories.recorder import fold_pending
from apps.trajectories.trie import load_context, load_steps
from tests.factories.accounts import ApiKeyFactory
from tests.factories.trajectories import ExchangeFactory

pytestmark = pytest.mark.django_db

SYSTEM = {"role": "system", "content": "You help people with their work. " * 100}
HEAD = list(range(1000))


@pytest.fixture(autouse=True)
def nothing_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start as a recorder that was just started."""
    monkeypatch.setattr(openings, "_settled", LeastUsed(max_bytes=openings.MAX_BYTES))


def call(key: ApiKey, words: str, *, head: list[int] = HEAD, **more: Any) -> Exchange:
    messages = [SYSTEM, {"role": "user", "content": words}]
    return ExchangeFactory.create(key=key, messages=messages, prompt_ids=[*head, *map(ord, words)], **more)


def assert_exact(exchange: Exchange, words: str, *, head: list[int] = HEAD) -> Step:
    step = Step.objects.get(exchange_id=exchange.id)
    (view,) = load_steps(step.trajectory)
    assert view.prompt_ids == [*head, *map(ord, words)]
    assert view.messages == [SYSTEM, {"role": "user", "content": words}]
    assert list(load_context(step.id).messages) == [*view.messages, view.answer]
    return step


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_later_conversations_share_what_the_first_two_have_in_common(key: ApiKey, is_one_batch: bool) -> None:
    names = ["first", "other", "third"]
    exchanges = []
    for name in names:
        exchanges.append(call(key, name))
        if not is_one_batch:
            fold_pending()
    fold_pending()
    first, second, third = (assert_exact(*pair) for pair in zip(exchanges, names, strict=True))
    assert Trajectory.objects.count() == 3
    assert Opening.objects.get().token_ids == bytes(first.tail_token_ids)[: 4 * len(HEAD)]
    assert (first.shared_tokens, second.shared_tokens, third.shared_tokens) == (0, 1000, 1000)
    assert bytes(third.tail_messages) == b'[{"role":"user","content":"third"}]'


def test_the_words_of_the_first_user_do_not_stay_when_they_are_deleted(key: ApiKey) -> None:
    call(key, "a secret")
    fold_pending()
    assert Opening.objects.get().token_ids == b""
    Trajectory.objects.all().delete()
    exchange = call(key, "a secret")
    fold_pending()
    assert_exact(exchange, "a secret")


def test_prompts_with_nothing_in_common_are_kept_whole(key: ApiKey) -> None:
    heads = [HEAD, HEAD[::-1], HEAD[::-1], HEAD]
    exchanges = [call(key, f"call {number}", head=head) for number, head in enumerate(heads)]
    fold_pending()
    steps = [assert_exact(exchange, f"call {n}", head=heads[n]) for n, exchange in enumerate(exchanges)]
    assert [step.shared_tokens for step in steps] == [0, 0, 1005, 0]


def test_calls_without_tokens_share_words_and_hinder_nobody(key: ApiKey) -> None:
    text_only: dict[str, Any] = {
        "is_exact": False,
        "prompt_token_ids": None,
        "completion_token_ids": [],
        "completion_logprobs": [],
    }
    call(key, "a", **text_only)
    call(key, "b", **text_only)
    for words in "cde":
        call(key, words)
    fold_pending()
    assert Opening.objects.count() == 2
    assert list(Step.objects.order_by("id").values_list("shared_messages", flat=True)) == [1] * 5
    assert list(Step.objects.order_by("id").values_list("shared_tokens", flat=True)) == [0, 0, 0, 1000, 1000]


def test_projects_share_nothing(key: ApiKey) -> None:
    for owner in (key, ApiKeyFactory.create()):
        call(owner, "hello")
    fold_pending()
    assert Opening.objects.count() == 2
    assert not Step.objects.filter(shared_tokens__gt=0).exists()


def test_a_short_beginning_is_not_worth_a_row(key: ApiKey) -> None:
    ExchangeFactory.create_batch(2, key=key)
    fold_pending()
    assert not Opening.objects.exists()


def test_what_a_transaction_took_back_is_not_remembered(key: ApiKey) -> None:
    call(key, "one")
    bad = ExchangeFactory.create(key=key, dialect="klingon")
    call(key, "two")
    last = call(key, "three")
    fold_pending()
    assert_exact(last, "three")
    assert Exchange.objects.set_aside().get() == bad
