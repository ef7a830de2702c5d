"""Chat calls of real clients, with each call's true parent: what the clients themselves did, not what we found."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "data" / "captures" / "chat.json"


@dataclass(frozen=True, kw_only=True)
class CapturedCall:
    """`parent` is the number, in its run, of the call whose answer stands last in this one's history."""

    run: str
    seq: int
    parent: int | None
    is_parent_captured: bool
    status: int
    headers: dict[str, str]
    body: dict[str, Any]
    answer: dict[str, Any] | None

    @property
    def name(self) -> tuple[str, int]:
        return self.run, self.seq


@cache
def read_captures() -> tuple[CapturedCall, ...]:
    """Return all calls, run after run, each run in its order."""
    return tuple(CapturedCall(**call) for call in json.loads(DATA.read_text()))


def interleave(calls: tuple[CapturedCall, ...]) -> list[CapturedCall]:
    """Return the calls as if all runs had gone on side by side."""
    return sorted(calls, key=lambda call: (call.seq, call.run))


def with_unique_call_ids(call: CapturedCall) -> CapturedCall:
    """Return the call as if our gateway had made the tool-call ids: never the same in two runs."""
    mark = re.sub("[^a-z]", "", call.run)
    return _rewrite(call, lambda text: re.sub(r"\bcall(_?)stub", rf"call\1{mark}0000stub", text))


def with_equal_answers(call: CapturedCall) -> CapturedCall:
    """Return the call as if the model always said OK."""
    return _rewrite(call, lambda text: re.sub(r"Stub reply \d+: [a-z ,]+\.", "OK", text))


def _rewrite(call: CapturedCall, change: Any) -> CapturedCall:
    body, answer = (json.loads(change(json.dumps(part))) for part in (call.body, call.answer))
    return CapturedCall(**{**vars(call), "body": body, "answer": answer})
