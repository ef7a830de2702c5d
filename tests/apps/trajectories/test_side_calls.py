"""Calls beside the conversation: what they are known by, and what goes on from them."""

from typing import Any

import pytest

from apps.accounts.models import ApiKey
from apps.trajectories.marks import read_marks
from apps.trajectories.models import SideCall, Step
from apps.trajectories.recorder import fold_pending
from apps.trajectories.side_calls import is_rewritten_retry, read_subagent_depth, recognise_side_call
from tests.factories.trajectories import TOOL, ExchangeFactory

STAMP = "[Tue 2026-12-01 01:40 UTC] "
OPENCLAW = {"role": "system", "content": "<!-- openclaw:attempt:STABLE --> You are"}
CARRIER = {
    "role": "user",
    "content": "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> none <<<END_OPENCLAW_INTERNAL_CONTEXT>>>",
}
QUEUED = "[Queued user message from a previous active turn; preserved as context only.]\nsay hi\n\n"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("messages", "headers", "kind"),
    [
        ([{"role": "system", "content": "You are naming a coding session so"}, user("x")], {}, SideCall.TITLE),
        ([{"role": "system", "content": "managed memory extraction subagent"}], {}, SideCall.EXTRACTION),
        ([user("CRITICAL: Respond with TEXT ONLY. Do NOT")], {}, SideCall.COMPACTION),
        ([user("You are performing a CONTEXT CHECKPOINT COMPACTION.")], {}, SideCall.COMPACTION),
        ([user("x")], {"x-codex-turn-metadata": '{"request_kind":"compaction"}'}, SideCall.COMPACTION),
        ([user("x")], {"x-codex-turn-metadata": '{"request_kind":"turn"}'}, SideCall.NONE),
        ([user("x")], {"x-openai-subagent": "memory_consolidation"}, SideCall.EXTRACTION),
        ([user("x")], {"x-openai-subagent": "review"}, SideCall.SUBAGENT),
        ([OPENCLAW, user(f"{STAMP}A background task completed. Use this"), CARRIER], {}, SideCall.ANNOUNCE),
        ([user("A background task completed. What now?")], {}, SideCall.NONE),
        ([user("Pre-compaction memory flush"), said("NO_REPLY"), user("hello")], {}, SideCall.NONE),
        ([user("hello"), {"role": "system", "content": "You are a title generator"}], {}, SideCall.NONE),
        ([], {}, SideCall.NONE),
    ],
)
def test_side_calls_are_known_by_marks_and_texts(messages: list[Any], headers: dict[str, str], kind: SideCall) -> None:
    assert recognise_side_call(messages, read_marks(headers, {}, session_key="s")) == kind


@pytest.mark.parametrize(
    ("messages", "is_retry"),
    [
        ([OPENCLAW, user(f"{STAMP}{QUEUED}Continue the current task from the existing transcript."), CARRIER], True),
        ([user(f"{QUEUED}now this")], True),
        ([user(f"{STAMP}Continue the current task from the existing transcript, preserving")], True),
        ([user(QUEUED), said("hi")], False),
        ([user("say hi")], False),
        ([CARRIER], False),
        ([], False),
    ],
)
def test_openclaws_rewritten_retry_is_known(messages: list[Any], is_retry: bool) -> None:
    assert is_rewritten_retry(messages) == is_retry


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        (f"{STAMP}[Subagent Context] You are running as a subagent (depth 3/5). Be quick", 3),
        ("[Subagent Context] You are one", 1),
        ("hello (depth 4/5)", 1),
    ],
)
def test_a_sub_agents_depth_is_read(text: str, depth: int) -> None:
    assert read_subagent_depth([OPENCLAW, user(text)]) == depth


@pytest.mark.django_db
def test_what_goes_on_beside_the_main_chain_stays_beside_it(key: ApiKey) -> None:
    other = {"role": "system", "content": "Summarise."}
    named: dict[str, Any] = {"key": key, "session_key": "s", "header": {"session_id": "s"}}
    ExchangeFactory.create(**named, body={"tools": [TOOL]})
    ExchangeFactory.create(**named, messages=[other, user("x")], answers=[{"content": "more?"}])
    ExchangeFactory.create(**named, messages=[other, user("x"), said("more?"), user("y")])
    fold_pending()
    kinds = Step.objects.order_by("index").values_list("side_call", flat=True)
    assert list(kinds) == [SideCall.NONE, SideCall.OTHER, SideCall.OTHER]


@pytest.mark.django_db
def test_what_codex_calls_a_turn_is_the_main_chain_after_a_compaction_too(key: ApiKey) -> None:
    def call(kind: str, *messages: dict[str, Any], **body: Any) -> None:
        header = {"thread-id": "s", "x-codex-turn-metadata": f'{{"request_kind":"{kind}"}}'}
        ExchangeFactory.create(key=key, session_key="s", header=header, messages=list(messages), body=body)

    call("turn", {"role": "system", "content": "You code."}, user("hello"), tools=[TOOL])
    call("compaction", {"role": "system", "content": "You code."}, user("hello"), said("hi"), user("sum up"))
    call("turn", user("what was said before: hello"), user("thanks"), tools=[TOOL])
    fold_pending()
    kinds = Step.objects.order_by("index").values_list("side_call", flat=True)
    assert list(kinds) == [SideCall.NONE, SideCall.COMPACTION, SideCall.NONE]


@pytest.mark.django_db
def test_the_main_chain_goes_on_from_an_announcement(key: ApiKey) -> None:
    announce = [OPENCLAW, user("hello"), said("hi"), user("A background task completed. Use it.")]
    named: dict[str, Any] = {"key": key, "session_key": "s", "header": {"session_id": "s"}}
    ExchangeFactory.create(**named, messages=[OPENCLAW, user("hello")], body={"tools": [TOOL]})
    ExchangeFactory.create(**named, messages=announce, answers=[{"content": "the kid says hi"}])
    after = [OPENCLAW, user("hello"), said("hi"), said("the kid says hi"), user("thanks")]
    ExchangeFactory.create(**named, messages=after, body={"tools": [TOOL]})
    fold_pending()
    hello, announced, thanks = Step.objects.order_by("index")
    assert (announced.parent_id, thanks.parent_id) == (hello.id, announced.id)
    assert [step.side_call for step in (hello, announced, thanks)] == ["", SideCall.ANNOUNCE, ""]
