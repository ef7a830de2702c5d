"""The token trie gives back byte for byte what went in."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.core.contracts.arrays import pack_ids, unpack_ids
from apps.trajectories.messages import dump_json
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.recorder import fold_pending
from apps.trajectories.trie import (
    iterate_steps,
    join_messages,
    join_tokens,
    load_context,
    load_steps,
    split_spelled,
    split_tokens,
)
from tests.factories.accounts import ApiKeyFactory
from tests.factories.trajectories import ExchangeFactory, TrajectoryFactory

LONG = "You help people with their work. " * 40  # long enough to be an opening that conversations share
CARRIER = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>{}<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"

tokens = st.lists(st.integers(0, 3), max_size=40).map(pack_ids)
texts = st.text(max_size=12)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "tool"]), "content": texts | st.none() | st.just(1) | st.just(1.0)}
    ),
    max_size=6,
)


@given(parent=tokens, prompt=tokens)
def test_tokens_survive_splitting(parent: bytes, prompt: bytes) -> None:
    shared, tail = split_tokens(parent, prompt)
    assert join_tokens(parent, shared, tail) == prompt
    assert not tail or parent[shared * 4 : shared * 4 + 4] != tail[:4]  # nothing more could be shared


def spell(values: list[Any]) -> list[str]:
    return [dump_json(value) for value in values]


@given(parent=messages, sent=messages)
def test_messages_survive_splitting(parent: list[Any], sent: list[Any]) -> None:
    shared, tail = split_spelled(spell(parent), spell(sent))
    assert repr(join_messages(parent, shared, tail)) == repr(sent)


def test_values_that_are_equal_but_spelled_differently_are_kept_apart() -> None:
    shared, tail = split_spelled(spell([{"n": 1}]), spell([{"n": True}]))
    assert (shared, tail) == (0, b'[{"n":true}]')


@st.composite
def moves(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A conversation as a client may lead it: go on, go back and fork, edit history, end with a passing message."""
    return draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "from": st.integers(0, 5),  # how many answers back to go on from
                    "say": texts,
                    "answer": texts,
                    "passing": st.booleans(),
                    "edit": st.none() | st.tuples(st.integers(0, 5), texts),
                    "compact": st.none() | texts,  # all that was said becomes this
                    "system": st.none() | st.none() | st.sampled_from([LONG, LONG + "!"]),
                    "n": st.sampled_from([1, 1, 1, 2]),
                    "noise": st.lists(st.integers(0, 50_000), max_size=5),
                }
            ),
            min_size=1,
            max_size=8,
        )
    )


def tokenise(sent: list[dict[str, Any]]) -> list[int]:
    """Stand in for a chat template: every message opens with a token, then its code points."""
    return [token for message in sent for token in [7, *map(ord, str(message["content"]))]]


@pytest.mark.django_db
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=moves(), is_named=st.booleans(), one_by_one=st.booleans())
def test_conversations_come_back_exactly(script: list[dict[str, Any]], is_named: bool, one_by_one: bool) -> None:
    """Those that go on, fork, change history, are compacted, end with a passing message or share an opening."""
    key = ApiKeyFactory.create()
    named = TrajectoryFactory.create(agent=key.agent).id if is_named else ""
    sent = play(script, key=key, trajectory_id=named)
    while fold_pending(limit=1 if one_by_one else 200):
        pass
    told = {}
    for trajectory in Trajectory.objects.filter(agent=key.agent):
        told.update({(view.row.exchange_id, view.row.choice): view for view in load_steps(trajectory)})
    for view in told.values():
        context = load_context(view.row.id)
        assert unpack_ids(context.token_ids) == [*view.prompt_ids, *view.completion_ids]
        assert context.messages == (*view.messages, view.answer)
    assert set(told) == set(sent)
    for name, (prompt, completion, messages_in, answer) in sent.items():
        view = told[name]
        assert view.prompt_ids == prompt
        assert view.completion_ids == completion
        assert view.logprobs == [-0.25] * len(completion)
        assert view.messages == messages_in
        assert view.answer["content"] == answer


def play(script: list[dict[str, Any]], *, key: Any, trajectory_id: str) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Write the exchanges of a script and return, by exchange and choice, what was said exactly."""
    ends: list[list[dict[str, Any]]] = [[{"role": "system", "content": "be good"}]]
    sent = {}
    moment = timezone.now() - timedelta(hours=1)
    for number, move in enumerate(script):
        history = [dict(message) for message in ends[max(0, len(ends) - 1 - move["from"])]]
        if move.get("compact") is not None:
            history = [history[0], {"role": "user", "content": move["compact"]}]
        if move.get("system"):
            history = [{"role": "system", "content": move["system"]}]  # a conversation of its own
        if move["edit"] and len(history) > move["edit"][0]:
            history[move["edit"][0]]["content"] = move["edit"][1]
        history.append({"role": "user", "content": move["say"]})
        messages_in = [*history, {"role": "user", "content": CARRIER.format(number)}] if move["passing"] else history
        prompt = tokenise(messages_in)
        completions = [[*map(ord, move["answer"]), *move["noise"], choice] for choice in range(move["n"])]
        moment += timedelta(seconds=2)
        exchange = ExchangeFactory.create(
            key=key,
            trajectory_id=trajectory_id,
            messages=messages_in,
            answers=[{"content": move["answer"]}] * move["n"],
            prompt_ids=prompt,
            completions=completions,
            token_logprobs=[[-0.25] * len(ids) for ids in completions],
            ended_at=moment,
        )
        ends.append([*history, {"role": "assistant", "content": move["answer"]}])
        for choice, ids in enumerate(completions):
            sent[exchange.id, choice] = (prompt, ids, messages_in, move["answer"])
    return sent


@pytest.mark.django_db
def test_a_conversation_with_passing_messages_is_stored_once() -> None:
    """Twenty turns that each end with a message which the next one lacks: stored tokens grow like T, not like T²."""
    key = ApiKeyFactory.create()
    script: list[dict[str, Any]] = [
        {"from": 0, "say": "x" * 200, "answer": "y" * 100, "passing": True, "edit": None, "n": 1, "noise": []}
        for _ in range(20)
    ]
    sent = play(script, key=key, trajectory_id="")
    while fold_pending():
        pass
    steps = Step.objects.all()
    stored = sum(len(bytes(step.tail_token_ids)) + len(bytes(step.completion_token_ids)) for step in steps) // 4
    naive = sum(len(prompt) + len(ids) for prompt, ids, _, _ in sent.values())
    assert len({step.trajectory_id for step in steps}) == 1
    assert stored < naive / 5


@pytest.mark.django_db
def test_a_window_of_steps_is_read_alone() -> None:
    key = ApiKeyFactory.create()
    move = {"say": "a", "answer": "b", "passing": False, "edit": None, "n": 1, "noise": []}
    play([{"from": 0, **move} for _ in range(6)], key=key, trajectory_id="")
    fold_pending()
    trajectory = Trajectory.objects.get()
    whole = load_steps(trajectory)
    window = list(iterate_steps(trajectory, first=2, limit=3))
    assert [view.row.index for view in window] == [2, 3, 4]
    assert [view.prompt_ids for view in window] == [view.prompt_ids for view in whole[2:5]]
    assert load_context(whole[4].row.id).messages == (*whole[4].messages, whole[4].answer)
