"""Calls of real clients as captured, each with its true parent, for the recorder to be measured against.

`captures.json.gz` holds the requests as they came. `parents.json` was written by hand from them, without our code: the
stub that answered the clients numbered its answers ("Stub reply 7", `call_stub7_0`) as it numbered the requests, so the
last assistant item of a request names its parent. Where that call is not among the samples, it is put back from what
the later request quotes of it ("lost-7"), and `nearest` is the ancestor that is there. A call that follows a compaction
and quotes no answer goes on from the call that its history begins with.
"""

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from apps.gateway.messages.shapes import read_messages_request
from apps.gateway.responses.shapes import check_request, make_request
from apps.gateway.sessions import find_session_key, kept_headers

DATA = Path(__file__).parents[2] / "data" / "captures"
_END = "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
_DIALECTS = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is known of a call by looking at it. `parent` and `nearest` are names of calls."""

    call: str
    session: str | None  # None: no call of a model's conversation
    parent: str | None = None
    nearest: str | None = None
    quoted_in: str = ""
    seq: int = 0
    run: str = ""
    side: str = ""
    started_by: str = ""
    epoch: int | None = None
    failed: bool = False
    needs_mark: bool = False  # compacted: nothing but the session's name leads to its parent

    @property
    def is_lost(self) -> bool:
        return bool(self.quoted_in)


@dataclass(frozen=True, kw_only=True)
class CapturedCall:
    """A call as the gateway would have recorded it. `answer` is an assistant message, None for a failed call."""

    truth: Truth
    run: str
    seq: int
    dialect: str
    request: bytes
    chat_request: dict[str, Any]
    answer: dict[str, Any] | None
    response_id: str
    headers: dict[str, str] = field(default_factory=dict)
    session_key: str = ""
    at: float = 0.0  # seconds since the run began

    @property
    def name(self) -> str:
        return self.truth.call


@cache
def read_truths() -> dict[str, Truth]:
    """Return what is known of every capture and of the calls that are put back."""
    entries = json.loads((DATA / "parents.json").read_text())
    return {entry["call"]: Truth(**entry) for entry in entries}


@cache
def read_samples() -> dict[str, dict[str, Any]]:
    """Return the captures as they are, by name."""
    samples: dict[str, dict[str, Any]] = json.loads(gzip.decompress((DATA / "captures.json.gz").read_bytes()))
    return samples


def read_captures(*, with_lost: bool = True, change: Callable[[str, str], str] | None = None) -> list[CapturedCall]:
    """Return the calls run after run, each run in its order.

    `change(run, text)` may rewrite a call, spelled as JSON.
    """
    calls = [_read_call(name) for name, truth in read_truths().items() if truth.session and not truth.is_lost]
    if with_lost:
        found = {call.name: call for call in calls}
        calls += [_put_back(truth, found[truth.quoted_in]) for truth in read_truths().values() if truth.is_lost]
    changed = [_rewrite(call, change) for call in calls] if change else calls
    return sorted(changed, key=lambda call: (call.run, call.seq))


def interleave(calls: list[CapturedCall]) -> list[CapturedCall]:
    """Return the calls as if all runs had gone on side by side."""
    return sorted(calls, key=lambda call: (call.seq, call.run))


def without_marks(call: CapturedCall) -> CapturedCall:
    """Return the call as a client sends it that marks nothing."""
    return replace(call, headers={}, session_key="")


def with_unique_call_ids(run: str, text: str) -> str:
    """Make tool-call ids as our gateway does: never the same in two runs."""
    mark = re.sub("[^a-z]", "", run)
    return re.sub(r"\b(call|toolu)(_?)stub", rf"\1\2{mark}0000stub", text)


def with_equal_answers(run: str, text: str) -> str:
    """Let the model always say OK."""
    return re.sub(r"Stub reply \d+: [a-z ,]+\.", "OK", with_unique_call_ids(run, text))


def _read_call(name: str) -> CapturedCall:
    sample = read_samples()[name]
    dialect = _DIALECTS[sample["path"]]
    run, seq, body = sample["run"], sample["seq"], _fill_in_schemas(sample["body"])
    text = json.dumps(body)
    # Long texts were cut in the middle, which left OpenClaw's closing mark there one and a half times.
    text = text.replace(f"{_END} CLAW_INTERNAL_CONTEXT>>>", _END)
    # The stub's ids of responses are the same in all runs.
    text = re.sub(r"resp_stub0*(\d+)", rf"resp_{run}_\1", text)
    request, body = text.encode(), json.loads(text)
    headers = {key.lower(): value for key, value in sample["headers"]}
    return CapturedCall(
        truth=read_truths()[name],
        run=run,
        seq=seq,
        dialect=dialect,
        request=request,
        chat_request=_render_chat(dialect, request),
        answer=_read_answer(sample, seq=seq),
        response_id=f"resp_{run}_{seq}",
        headers=orjson.loads(kept_headers(headers)),
        session_key=find_session_key(headers, body, request),
        at=sample["t"],
    )


def _fill_in_schemas(body: dict[str, Any]) -> dict[str, Any]:
    """The samples' tools have lost their schemas."""
    for tool in body.get("tools") or []:
        for name in ("input_schema", "parameters"):
            if isinstance(tool.get(name), str):
                tool[name] = {"type": "object"}
    return body


def _render_chat(dialect: str, request: bytes) -> dict[str, Any]:
    if dialect == "chat":
        body = json.loads(request)
        return {"messages": body["messages"], "tools": body.get("tools") or []}
    if dialect == "messages":
        form = read_messages_request(request).chat_form
    else:
        body = check_request(request)
        form = make_request(body, items=body["input"], earlier=[], project_id="").chat_form
    assert form is not None
    return form


def _read_answer(sample: dict[str, Any], *, seq: int) -> dict[str, Any] | None:
    reply = sample["stub_reply"]
    if reply is None:
        return None
    prefix = "toolu" if sample["path"] == "/v1/messages" else "call"
    calls = [
        {
            "id": f"{prefix}_stub{seq}_{place}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for place, (name, arguments, _) in enumerate(reply["calls"])
    ]
    return {"role": "assistant", "content": reply["text"], **({"tool_calls": calls} if calls else {})}


def _put_back(truth: Truth, later: CapturedCall) -> CapturedCall:
    """Return a call that is not among the samples, as `later` quotes it."""
    messages = later.chat_request["messages"]
    at = next(place for place, message in enumerate(messages) if _is_answer(message, seq=truth.seq))
    chat_request = {**later.chat_request, "messages": messages[:at]}
    return CapturedCall(
        truth=truth,
        run=truth.run,
        seq=truth.seq,
        dialect="chat",
        request=json.dumps(chat_request).encode(),
        chat_request=chat_request,
        answer=messages[at],
        response_id=f"resp_{truth.run}_{truth.seq}",
        headers=later.headers,
        session_key=later.session_key,
        at=later.at - (later.seq - truth.seq) / 10,
    )


def _is_answer(message: dict[str, Any], *, seq: int) -> bool:
    if message["role"] != "assistant":
        return False
    ids = [re.sub("[^0-9A-Za-z]", "", call["id"]) for call in message.get("tool_calls") or []]
    if any(found.endswith(f"stub{seq}0") for found in ids):
        return True
    return not ids and f"Stub reply {seq}:" in json.dumps(message.get("content"))


def _rewrite(call: CapturedCall, change: Callable[[str, str], str]) -> CapturedCall:
    chat_request, answer = (json.loads(change(call.run, json.dumps(part))) for part in (call.chat_request, call.answer))
    request = change(call.run, call.request.decode()).encode()
    return replace(call, request=request, chat_request=chat_request, answer=answer)
