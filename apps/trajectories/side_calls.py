"""Recognises the calls that clients make beside the conversation: titles, compactions, heartbeats, sub-agents. Pure.

By the client's own mark where there is one, else by the texts that clients are known to send. A call whose kind nobody
knows is recognised in `placing.py`, by what it has not in common with its session.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from apps.trajectories import messages as chat
from apps.trajectories.marks import Marks
from apps.trajectories.messages import Message
from apps.trajectories.models import SideCall

# Where the text stands, then what it says. The texts are the beginnings of longer ones.
_SYSTEM_TEXTS = (
    ("You are a title generator", SideCall.TITLE),
    ("You are naming a coding session", SideCall.TITLE),
    ("context summarization assistant", SideCall.COMPACTION),
    ("managed memory extraction subagent", SideCall.EXTRACTION),
)
_USER_TEXTS = (
    ("Pre-compaction memory flush", SideCall.FLUSH),
    ("CONTEXT CHECKPOINT COMPACT", SideCall.COMPACTION),
    ("CRITICAL: Respond with TEXT ONLY", SideCall.COMPACTION),
    ("Follow the heartbeat monitor scratch context", SideCall.HEARTBEAT),
)
_KINDS = {  # as Codex names them
    "compaction": SideCall.COMPACTION,
    "compact": SideCall.COMPACTION,
    "memory_consolidation": SideCall.EXTRACTION,
}
_OPENCLAW = "openclaw:attempt"  # stands in the system text of every turn of OpenClaw's
_ANNOUNCE = "A background task com"
_DEPTH = re.compile(r"\[Subagent Context\][^\n]{0,80}\(depth (\d{1,2})/")
_QUEUED = "[Queued user message from a previous active turn"
_CONTINUE = "Continue the current task from the existing transcript"


def recognise_side_call(messages: Sequence[Message], marks: Marks) -> SideCall:
    """Return which side call this is, NONE for the main chain or one of a kind that no client is known for."""
    if marks.kind in _KINDS:
        return _KINDS[marks.kind]
    return recognise_words(messages) or (SideCall.SUBAGENT if marks.is_subagent else SideCall.NONE)


def recognise_words(messages: Sequence[Message]) -> SideCall:
    """Return which side call this is by what stands in it alone."""
    last = chat.last_user_text(messages)
    told, is_openclaw = _read_system(chat.system_text(messages))
    known = told or next((kind for text, kind in _USER_TEXTS if text in last), None)
    if known:
        return known
    if is_openclaw and chat.unwrap_text(last).startswith(_ANNOUNCE):
        return SideCall.ANNOUNCE
    return SideCall.SUBAGENT if any(map(chat.is_to_subagent, messages)) else SideCall.NONE


@lru_cache(maxsize=100)  # an agent's calls have few system texts, and they are long
def _read_system(text: str) -> tuple[SideCall | None, bool]:
    """Return what the system text says that the call is for, and whether it is a turn of OpenClaw's."""
    return next((kind for known, kind in _SYSTEM_TEXTS if known in text), None), _OPENCLAW in text


def is_rewritten_retry(messages: Sequence[Message]) -> bool:
    """Say whether the last thing said is the user's message as OpenClaw rewrites it after a failed call."""
    last = next((message for message in reversed(messages) if chat.digest_message(message) is not None), None)
    if last is None or chat.role_of(last) != "user":
        return False
    text = chat.unwrap_text(chat.text_of(last))
    return text.startswith(_QUEUED) or _CONTINUE in text


def is_quoted(failed: Sequence[Message], retry: Sequence[Message]) -> bool:
    """Say whether the retry, as OpenClaw rewrites it, holds the last words of the call that failed."""
    return chat.unwrap_text(chat.last_user_text(failed)).strip() in chat.last_user_text(retry)


def read_subagent_depth(messages: Sequence[Message]) -> int:
    """Return how far below the main agent OpenClaw says that this one is; 1 when nobody says it."""
    found = (_DEPTH.match(chat.unwrap_text(chat.text_of(message))) for message in messages)
    return next((int(match.group(1)) for match in found if match), 1)
