"""Folding exchanges into trajectories and steps: every kind of call has a defined outcome."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.accounts.models import Agent, ApiKey
from apps.core.contracts.arrays import pack_ids
from apps.trajectories.models import Exchange, ExchangeStatus, SideCall, Step, Tools, Trajectory, TrajectoryState
from apps.trajectories.recorder import BATCH, LONG_BYTES, Pending, fold_pending, make_groups
from apps.trajectories.services import close_idle_trajectories, complete_trajectory
from apps.trajectories.trie import load_steps, load_tools
from tests.factories.accounts import ApiKeyFactory
from tests.factories.registry import VersionFactory
from tests.factories.trajectories import TOOL, ExchangeFactory, TrajectoryFactory, chat_response

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


def test_it_keeps_when_a_key_was_last_used(key: ApiKey, agent: Agent) -> None:
    unused = ApiKeyFactory.create(agent=agent)
    ExchangeFactory.create(key=key)
    latest = ExchangeFactory.create(key=key)
    fold_pending()
    assert dict(ApiKey.objects.values_list("id", "last_used_at")) == {key.id: latest.ended_at, unused.id: None}


def test_folding_again_changes_nothing(key: ApiKey) -> None:
    ExchangeFactory.create(key=key)
    fold_pending()
    assert fold_pending() == 0
    assert Step.objects.count() == 1


def test_a_ledger_that_is_played_again_makes_no_second_steps(key: ApiKey) -> None:
    ExchangeFactory.create_batch(3, key=key)
    fold_pending()
    Exchange.objects.update(folded_at=None)
    assert fold_pending() == 0
    assert not Exchange.objects.unfolded().exists()
    assert not Exchange.objects.set_aside().exists()
    assert Step.objects.count() == Trajectory.objects.count() == 3


def test_what_the_engine_was_asked_is_kept(key: ApiKey) -> None:
    version = VersionFactory.create()
    exchange = ExchangeFactory.create(
        key=key,
        version_id=version.id,
        body={"tools": [TOOL]},
        sampling=b'{"temperature": 0.7, "top_p": 0.9, "top_k": 40}',
        response_id="chatcmpl-abc",
    )
    fold_pending()
    step = Step.objects.get()
    assert (step.temperature, step.top_p, step.top_k) == (0.7, 0.9, 40)
    assert step.version == version
    assert step.response_id == "chatcmpl-abc"
    assert step.exchange_id == exchange.id
    assert load_tools(project_id=exchange.project_id, digest=step.tools_digest) == [TOOL]


def test_tool_definitions_are_stored_once(key: ApiKey) -> None:
    for _ in range(3):
        ExchangeFactory.create(key=key, body={"tools": [TOOL]})
    fold_pending()
    assert Tools.objects.count() == 1


def test_choices_of_one_call_are_siblings(key: ApiKey) -> None:
    ExchangeFactory.create(key=key, answers=[{"content": "one"}, {"content": "two"}])
    ExchangeFactory.create(key=key, messages=[user("hello"), assistant("two"), user("more")])
    fold_pending()
    one, two, after = Step.objects.order_by("index")
    assert (one.choice, two.choice) == (0, 1)
    assert one.parent_id is two.parent_id is None
    assert Trajectory.objects.get().n_prompt_tokens == 3 + 3
    assert after.parent == two


def test_an_equal_start_is_another_session(key: ApiKey) -> None:
    ExchangeFactory.create(key=key)
    ExchangeFactory.create(key=key)
    fold_pending()
    assert Trajectory.objects.count() == 2


def test_keys_keep_sessions_apart(key: ApiKey, agent: Agent) -> None:
    ExchangeFactory.create(key=key)
    ExchangeFactory.create(
        key=ApiKeyFactory.create(agent=agent), messages=[user("hello"), assistant("hi"), user("more")]
    )
    fold_pending()
    assert Trajectory.objects.count() == 2


def test_a_named_session_is_one_trajectory(key: ApiKey, agent: Agent) -> None:
    ExchangeFactory.create(key=key, session_key="s1", messages=[user("a")])
    ExchangeFactory.create(key=key, session_key="s1", messages=[user("something else")])
    ExchangeFactory.create(key=key, session_key="s2", messages=[user("a")])
    ExchangeFactory.create(key=ApiKeyFactory.create(agent=agent), session_key="s1", messages=[user("a")])
    fold_pending()
    assert sorted(Trajectory.objects.values_list("session_key", "n_steps")) == [("s1", 1), ("s1", 2), ("s2", 1)]


def test_a_trajectory_named_by_id_takes_its_calls(key: ApiKey, agent: Agent) -> None:
    trajectory = TrajectoryFactory.create(agent=agent)
    ExchangeFactory.create(key=key, trajectory_id=trajectory.id, session_key="s1", messages=[user("a")])
    ExchangeFactory.create(key=key, trajectory_id=trajectory.id, messages=[user("b")])
    ExchangeFactory.create(key=key, trajectory_id=trajectory.id, messages=[user("a"), assistant("hi"), user("c")])
    fold_pending()
    a, b, c = Step.objects.order_by("index")
    assert {step.trajectory_id for step in (a, b, c)} == {trajectory.id}
    assert (b.parent_id, c.parent_id) == (None, a.id)


def test_a_call_without_an_answer_makes_no_step_but_marks_its_trajectory(key: ApiKey, agent: Agent) -> None:
    trajectory = TrajectoryFactory.create(agent=agent)
    failed: dict[str, Any] = {"response": None, "answers": [], "status": ExchangeStatus.ERROR, "error": "503"}
    ExchangeFactory.create(key=key, trajectory_id=trajectory.id, **failed)
    ExchangeFactory.create(key=key, messages=[user("nobody knows me")], **failed)
    assert fold_pending() == 2
    trajectory.refresh_from_db()
    assert trajectory.has_error
    assert Step.objects.count() == 0
    assert Trajectory.objects.count() == 1
    assert not Exchange.objects.set_aside().exists()


def test_an_answer_cut_before_its_first_token_makes_no_step(key: ApiKey) -> None:
    ExchangeFactory.create(
        key=key, session_key="s", answers=[{"content": ""}], completions=[[]], status=ExchangeStatus.ABORTED
    )
    fold_pending()
    assert Trajectory.objects.get().n_steps == 0


def test_a_retry_takes_the_place_of_an_aborted_call(key: ApiKey) -> None:
    ExchangeFactory.create(key=key, answers=[{"content": "h"}], completions=[[4]], status=ExchangeStatus.ABORTED)
    ExchangeFactory.create(key=key)
    fold_pending()
    aborted, again = Step.objects.order_by("index")
    assert aborted.trajectory_id == again.trajectory_id
    assert (aborted.is_excluded, again.is_excluded) == (True, False)
    assert again.parent_id is None


def test_a_counted_retry_replaces_an_answer_that_the_client_never_saw(key: ApiKey) -> None:
    ExchangeFactory.create(key=key)
    ExchangeFactory.create(key=key, header={"X-Stainless-Retry-Count": "1"})
    fold_pending()
    missed, again = Step.objects.order_by("index")
    assert (missed.is_excluded, again.is_excluded) == (True, False)


def test_the_same_question_an_hour_later_is_no_retry(key: ApiKey) -> None:
    hour_ago = timezone.now() - timedelta(hours=1)
    ExchangeFactory.create(key=key, status=ExchangeStatus.ABORTED, ended_at=hour_ago)
    ExchangeFactory.create(key=key)
    fold_pending()
    assert Trajectory.objects.count() == 2
    assert not Step.objects.filter(is_excluded=True).exists()


def test_a_late_call_is_kept_out_of_training(key: ApiKey, agent: Agent) -> None:
    trajectory = TrajectoryFactory.create(agent=agent)
    ExchangeFactory.create(key=key, trajectory_id=trajectory.id, ended_at=timezone.now() - timedelta(seconds=5))
    ExchangeFactory.create(key=key, trajectory_id=trajectory.id, ended_at=timezone.now() + timedelta(seconds=5))
    Trajectory.objects.update(state=TrajectoryState.COMPLETE, completed_at=timezone.now())
    fold_pending()
    before, after = Step.objects.order_by("index")
    assert {before.trajectory_id, after.trajectory_id} == {trajectory.id}
    assert (before.is_excluded, after.is_excluded) == (False, True)


def test_completing_loses_no_call_that_ended_before(key: ApiKey) -> None:
    ExchangeFactory.create(key=key, session_key="s")
    fold_pending()
    ExchangeFactory.create(key=key, session_key="s", messages=[user("hello"), assistant("hi"), user("bye")])
    trajectory = complete_trajectory(trajectory=Trajectory.objects.get())
    assert trajectory.n_steps == 2
    assert trajectory in Trajectory.objects.settled()


def test_a_trajectory_with_pending_calls_is_not_settled(
    key: ApiKey, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    trajectory = TrajectoryFactory.create(agent=agent, reward=1.0)
    exchange = ExchangeFactory.create(key=key, trajectory_id=trajectory.id)
    Trajectory.objects.update(state=TrajectoryState.COMPLETE, completed_at=timezone.now())
    assert not Trajectory.objects.settled().exists()
    assert not Trajectory.objects.for_training().exists()
    fold_pending()
    assert Exchange.objects.get(pk=exchange.id).folded_at
    assert Trajectory.objects.for_training().exists()


def test_a_session_that_goes_on_after_its_end_is_a_new_trajectory(key: ApiKey) -> None:
    long_ago = timezone.now() - timedelta(hours=1)
    ExchangeFactory.create(key=key, session_key="s", ended_at=long_ago)
    ExchangeFactory.create(key=key, messages=[user("unnamed")], ended_at=long_ago)
    fold_pending()
    assert close_idle_trajectories(idle_s=60) == 2
    ExchangeFactory.create(key=key, session_key="s", messages=[user("hello"), assistant("hi"), user("again")])
    ExchangeFactory.create(key=key, messages=[user("unnamed"), assistant("hi"), user("again")])
    fold_pending()
    assert Trajectory.objects.count() == 4
    assert close_idle_trajectories(idle_s=60) == 0


def test_a_call_of_another_dialect_is_read_in_its_chat_form(key: ApiKey) -> None:
    exchange = ExchangeFactory.create(
        key=key,
        dialect="messages",
        request=b"not chat",
        response=b"not chat either",
        chat_request=json.dumps({"messages": [user("bonjour")], "tools": [TOOL]}).encode(),
        chat_response=chat_response({"content": "salut"}),
    )
    fold_pending()
    (view,) = load_steps(Trajectory.objects.get())
    assert view.messages == [user("bonjour")]
    assert view.answer["content"] == "salut"
    assert load_tools(project_id=exchange.project_id, digest=view.row.tools_digest) == [TOOL]


@pytest.mark.parametrize("session", ["", "s"])
def test_a_call_that_names_an_earlier_answer_goes_on_from_it(key: ApiKey, session: str) -> None:
    first = ExchangeFactory.create(key=key, session_key=session, response_id="resp_1")
    ExchangeFactory.create(key=key, session_key=session, messages=[user("hello"), assistant("hi"), user("a")])
    named: dict[str, Any] = {"previous_response_id": "resp_1"}
    ExchangeFactory.create(key=key, session_key=session, messages=[user("unlike anything")], body=named)
    fold_pending()
    steps = Step.objects.order_by("index")
    assert steps[0].exchange_id == first.id
    assert [step.parent_id for step in steps] == [None, steps[0].id, steps[0].id]


def test_an_earlier_answer_of_another_key_or_of_a_closed_session_is_not_gone_on_from(key: ApiKey, agent: Agent) -> None:
    ExchangeFactory.create(key=ApiKeyFactory.create(agent=agent), response_id="resp_theirs")
    ExchangeFactory.create(key=key, response_id="resp_closed")
    fold_pending()
    for trajectory in Trajectory.objects.all():
        complete_trajectory(trajectory=trajectory)
    for named in ("resp_theirs", "resp_closed", "resp_unheard_of"):
        ExchangeFactory.create(key=key, messages=[user(named)], body={"previous_response_id": named})
    fold_pending()
    assert Trajectory.objects.count() == 5
    assert not Step.objects.exclude(parent=None).exists()


def test_a_refused_call_of_another_dialect_makes_no_step(key: ApiKey) -> None:
    refused: dict[str, Any] = {"response": b'{"error": 1}', "status": ExchangeStatus.ERROR, "error": "400"}
    ExchangeFactory.create(key=key, session_key="s", dialect="messages", request=b"{}", **refused)
    fold_pending()
    assert Trajectory.objects.get().has_error
    assert not Exchange.objects.set_aside().exists()


def test_a_call_whose_caller_opted_out_is_kept_out_of_training(key: ApiKey) -> None:
    ExchangeFactory.create(key=key, is_training_allowed=False)
    fold_pending()
    assert Step.objects.get().is_excluded
    assert not Step.objects.for_training().exists()


def test_a_doubt_about_the_tokens_goes_with_the_step(key: ApiKey) -> None:
    ExchangeFactory.create(key=key, token_check="2 ids more than log-probs")
    fold_pending()
    assert Step.objects.get().token_check == "2 ids more than log-probs"


def test_what_bent_the_sampling_is_on_the_step(key: ApiKey) -> None:
    ExchangeFactory.create(key=key, sampling=b'{"tool_choice":"required","min_p":0.1}')
    fold_pending()
    step = Step.objects.get()
    assert step.constraints == "min_p, tool_choice"
    assert not Step.objects.for_training().exists()


def test_sums_are_those_of_all_calls_of_a_batch(key: ApiKey) -> None:
    history = [user("hello")]
    for _ in range(3):
        ExchangeFactory.create(key=key, session_key="s", messages=history)
        history = [*history, assistant("hi"), user("more")]
    assert fold_pending() == 3
    trajectory = Trajectory.objects.get()
    assert (trajectory.n_steps, trajectory.n_prompt_tokens, trajectory.n_completion_tokens) == (3, 9, 6)
    assert trajectory.last_step_at == Exchange.objects.latest("ended_at").ended_at
    assert list(Step.objects.order_by("index").values_list("index", flat=True)) == [0, 1, 2]


def test_text_only_calls_are_kept_but_not_exact(key: ApiKey) -> None:
    ExchangeFactory.create(
        key=key, is_exact=False, prompt_token_ids=None, completion_token_ids=[], completion_logprobs=[]
    )
    fold_pending()
    step = Step.objects.get()
    assert not step.is_exact
    assert not Step.objects.for_training().exists()


@pytest.mark.parametrize(
    "arrays",
    [
        {"completions": [[4, 5]], "token_logprobs": [[-0.5]]},
        {"completion_token_ids": [b"\x01\x00\x00"]},
        {"completion_token_ids": []},
        {"prompt_token_ids": pack_ids([1, 2])[:-1]},
    ],
)
def test_ids_and_logprobs_that_do_not_match_are_not_exact(key: ApiKey, arrays: dict[str, Any]) -> None:
    ExchangeFactory.create(key=key, **arrays)
    fold_pending()
    assert not Step.objects.get().is_exact


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        ([{"role": "system", "content": "You are a title generator. Be short."}, user("x")], SideCall.TITLE),
        (
            [{"role": "developer", "content": "You are a context summarization assistant"}, user("x")],
            SideCall.COMPACTION,
        ),
        ([user("hello"), user("Pre-compaction memory flush. Store durable memories only.")], SideCall.FLUSH),
        ([user("Follow the heartbeat monitor scratch context when provided.")], SideCall.HEARTBEAT),
        ([user("[Subagent Context] You are running as a subagent (depth 1/5).")], SideCall.SUBAGENT),
        ([user("[Tue 2026-12-01 01:40 UTC] [Subagent Context] You are running as a subagent")], SideCall.SUBAGENT),
        ([user("hello")], SideCall.NONE),
    ],
)
def test_side_calls_are_labelled_and_left_out(key: ApiKey, messages: list[dict[str, Any]], kind: SideCall) -> None:
    ExchangeFactory.create(key=key, session_key="s", messages=messages)
    fold_pending()
    assert Step.objects.get().side_call == kind
    assert Step.objects.for_training().exists() == (kind == SideCall.NONE)


def test_a_call_of_another_kind_under_the_clients_own_mark_is_a_side_call(key: ApiKey) -> None:
    named: Callable[..., Exchange] = ExchangeFactory.create
    named(key=key, session_key="s", header={"session_id": "s"}, body={"tools": [TOOL]})
    named(key=key, session_key="s", header={"session_id": "s"}, messages=[user("Summarise: hello")])
    named(key=key, session_key="mine", header={"x-session-id": "mine"}, body={"tools": [TOOL]})
    named(key=key, session_key="mine", header={"x-session-id": "mine"}, messages=[user("Summarise: hello")])
    fold_pending()
    kinds = Step.objects.order_by("id").values_list("side_call", flat=True)
    assert list(kinds) == [SideCall.NONE, SideCall.OTHER, SideCall.NONE, SideCall.NONE]


def test_a_side_call_that_comes_first_does_not_push_the_main_chain_aside(key: ApiKey) -> None:
    title = [{"role": "system", "content": "You are a title generator."}, user("hello")]
    for messages in (title, [user("hello")]):
        ExchangeFactory.create(key=key, session_key="s", header={"session_id": "s"}, messages=messages)
    fold_pending()
    kinds = Step.objects.order_by("index").values_list("side_call", flat=True)
    assert list(kinds) == [SideCall.TITLE, SideCall.NONE]


def queue(agent: str, *sizes: int) -> list[Pending]:
    return [Pending(f"{agent}{place}", agent, n_bytes) for place, n_bytes in enumerate(sizes)]


def test_batches_hold_few_long_calls_or_many_short_ones_and_each_in_order() -> None:
    short, half = [100] * (BATCH + 1), LONG_BYTES * (BATCH // 2 - 1)
    assert [list(map(len, group.values())) for group in make_groups([queue("a", *short)])] == [[BATCH], [1]]
    groups = list(
        make_groups([queue("a", 10, half, half, half), queue("b", LONG_BYTES * BATCH * 9), queue("c", 10, 10)])
    )
    assert groups == [{"a": ["a0", "a1"]}, {"a": ["a2", "a3"]}, {"b": ["b0"]}, {"c": ["c0", "c1"]}]
    assert list(make_groups([queue("a", 10), queue("b", 10, 10)])) == [{"a": ["a0"], "b": ["b0", "b1"]}]
    assert list(make_groups([])) == []
