"""What is stored of a call under each policy: never what was to be taken out, in no column."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from apps.core.contracts.exchange import ExchangeRecord
from apps.core.redaction import BUILT_IN_NAMES, Redactor
from apps.gateway import capture_policy
from apps.gateway.capture_policy import OFF, make_policy, may_train, redact_record
from apps.gateway.errors import ApiError
from tests.apps.gateway.test_spool import make_record

EMAIL = "ada@example.org"
Json = dict[str, Any]


def redactor(*own: tuple[str, str], patterns: tuple[str, ...] = BUILT_IN_NAMES) -> Redactor:
    policy = make_policy("redact", patterns=patterns, own=[{"name": name, "pattern": text} for name, text in own])
    assert policy.redactor is not None
    return policy.redactor


def record(**changes: Any) -> ExchangeRecord:
    """A chat call that says nothing secret."""
    request = {"model": "m", "user": "u", "messages": [{"role": "user", "content": "hello", "tool_call_id": "call1"}]}
    answer = {"id": "chatcmpl-1", "choices": [{"message": {"role": "assistant", "content": "hi"}}]}
    fields = {
        "request": json.dumps(request).encode(),
        "response": json.dumps(answer).encode(),
        "sampling": b'{"temperature": 1.0}',
        "is_exact": True,
    }
    return make_record(**{**fields, **changes})


def everything(kept: ExchangeRecord) -> str:
    return str(asdict(kept))


async def test_a_call_that_nothing_matches_stays_exact() -> None:
    before = record()
    assert await redact_record(before, redactor()) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"request": json.dumps({"messages": [{"role": "user", "content": f"I am {EMAIL}"}]}).encode()},
        {"request": json.dumps({"user": EMAIL}).encode()},
        {"response": json.dumps({"choices": [{"message": {"content": EMAIL}}]}).encode()},
        {"chat_request": json.dumps({"messages": [{"content": [{"type": "text", "text": EMAIL}]}]}).encode()},
        {"chat_response": json.dumps({"choices": [{"message": {"content": EMAIL}}]}).encode()},
        {"sampling": json.dumps({"stop": [EMAIL]}).encode()},
        {"error": f"the engine does not like {EMAIL}", "status": "error"},
        {"request": b"not JSON: " + EMAIL.encode()},
    ],
)
async def test_what_matches_is_stored_nowhere_and_tokens_would_tell_it(changes: Json) -> None:
    kept = await redact_record(record(**changes), redactor())

    assert EMAIL not in everything(kept)
    assert "[redacted:email]" in everything(kept)
    assert (kept.prompt_token_ids, kept.completion_token_ids, kept.completion_logprobs) == (None, (), ())
    assert not kept.is_exact
    assert kept.token_check == "redacted: email"


async def test_a_sessions_name_tells_sessions_apart_and_nothing_else() -> None:
    headers = json.dumps({"x-session-id": f"{EMAIL}:1", "user-agent": "x"}).encode()
    one = await redact_record(record(session_key=EMAIL, headers=headers), redactor())
    same = await redact_record(record(session_key=EMAIL), redactor())
    other = await redact_record(record(session_key=f"b{EMAIL}"), redactor())

    assert EMAIL not in everything(one)
    assert one.session_key == same.session_key != other.session_key
    assert json.loads(one.headers)["user-agent"] == "x"
    assert one.is_exact  # what the model read and wrote is untouched


async def test_own_patterns_leave_the_structure_alone() -> None:
    before = record()
    kept = await redact_record(before, redactor(("word", r"\w+"), patterns=()))
    message = json.loads(kept.request)["messages"][0]

    assert message == {"role": "user", "content": "[redacted:word]", "tool_call_id": "call1"}
    assert json.loads(kept.response or b"")["choices"][0]["message"]["role"] == "assistant"
    assert kept.token_check == "redacted: word"


async def test_the_items_of_the_responses_api_keep_their_structure_and_tools_inputs_do_not() -> None:
    body = {
        "input": [{"type": "message", "role": "user", "content": "x1"}],
        "content": [{"type": "tool_use", "id": "x1", "input": {"id": "x1", "type": "x1"}}],
    }
    kept = await redact_record(record(request=json.dumps(body).encode()), redactor(("x", r"x\d|user"), patterns=()))

    assert json.loads(kept.request) == {
        "input": [{"type": "message", "role": "user", "content": "[redacted:x]"}],
        "content": [{"type": "tool_use", "id": "x1", "input": {"id": "[redacted:x]", "type": "[redacted:x]"}}],
    }


async def test_a_large_call_is_redacted_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_policy, "LARGE_BYTES", 10)
    kept = await redact_record(record(error=EMAIL), redactor())
    assert kept.error == "[redacted:email]"


async def test_should_redaction_fail_nothing_of_what_was_said_is_stored() -> None:
    class Broken(Redactor):
        def redact_text(self, text: str, found: Any) -> str:
            raise MemoryError

    words = json.dumps({"messages": [{"content": EMAIL}]}).encode()
    kept = await redact_record(
        record(request=words, response=words, session_key=EMAIL, headers=b'{"x-session-id": "ada@example.org"}'),
        Broken(redactor().patterns),
    )

    assert EMAIL not in everything(kept)
    assert (kept.status, kept.token_check, kept.is_exact) == ("error", "redacted: all", False)


def test_a_pattern_that_cannot_be_used_any_more_switches_capture_off() -> None:
    assert make_policy("redact", patterns=[], own=[{"name": "a", "pattern": "("}]) is OFF
    assert make_policy("off", patterns=[], own=[]).is_off


@pytest.mark.parametrize(
    ("headers", "may"),
    [({}, True), ({"x-claw-train": "on"}, True), ({"x-claw-train": "off"}, False), ({"x-claw-train": " OFF "}, False)],
)
def test_a_caller_may_keep_a_call_out_of_training(headers: dict[str, str], *, may: bool) -> None:
    assert may_train(headers) is may


def test_a_header_that_says_neither_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        may_train({"x-claw-train": "maybe"})
    assert (caught.value.status, caught.value.param) == (400, "x-claw-train")
