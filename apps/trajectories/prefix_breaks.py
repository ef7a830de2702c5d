"""Why a prompt does not go on where its parent ended: the cause decides what can be done about it. Pure.

Every break costs the engine its prefix cache and the trainer the tokens once more. Knows messages and counts of
tokens, no tokenizer: where words are the same and tokens are not, it is the template's or the tokenizer's doing.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apps.trajectories.messages import Message, digest_message, has_passing_words, role_of
from apps.trajectories.models import PrefixBreak

_THOUGHTS = ("reasoning", "reasoning_content", "thinking_blocks")  # what templates leave out of earlier turns
_THINK = re.compile(r"<think(?:ing)?>")
_LEAST_LOST = 2  # a client that takes out one message has edited; one that takes out half has compacted


@dataclass(frozen=True, kw_only=True)
class Joint:
    """Where a step goes on from its parent. `parent_messages` and `messages` are what follows the common beginning.

    `n_parent_prompt` and `n_parent` count the parent's tokens without and with its completion; `n_shared` those that
    both have. `n_parent_messages` counts all of the parent's messages, its answer included.
    """

    n_shared: int
    n_parent_prompt: int
    n_parent: int
    n_parent_messages: int
    parent_messages: Sequence[Message]
    messages: Sequence[Message]
    has_same_tools: bool = True
    has_new_epoch: bool = False  # the client says that it has compacted


def classify_break(joint: Joint) -> PrefixBreak:
    """Return the cause, NONE when the prompt goes on where the parent ended or when the tokens are not known."""
    if not joint.n_parent_prompt or joint.n_shared >= joint.n_parent:
        return PrefixBreak.NONE
    before, after = _digests(joint.parent_messages), _digests(joint.messages)
    if joint.has_new_epoch or _is_compacted(joint, before, after):
        return PrefixBreak.COMPACTION
    if after[: len(before)] != before or not joint.has_same_tools:
        return PrefixBreak.EDIT
    return _find_break_of_tokens(joint)


def _find_break_of_tokens(joint: Joint) -> PrefixBreak:
    """The client tells the same story; its tokens are others."""
    if _has_passing_words(joint):
        return PrefixBreak.TRANSIENT
    if joint.n_shared < joint.n_parent_prompt or _has_thoughts(joint.parent_messages):
        return PrefixBreak.TEMPLATE
    return PrefixBreak.RETOKENISED


def _digests(messages: Sequence[Message]) -> list[str]:
    """Return what the messages say, those left out that say nothing that lasts."""
    return [digest for message in messages if (digest := digest_message(message)) is not None]


def _is_compacted(joint: Joint, before: Sequence[str], after: Sequence[str]) -> bool:
    n_lost = sum((Counter(before) - Counter(after)).values())
    return n_lost >= _LEAST_LOST and 2 * n_lost >= joint.n_parent_messages


def _has_passing_words(joint: Joint) -> bool:
    return joint.n_shared < joint.n_parent_prompt and any(map(has_passing_words, joint.parent_messages))


def _has_thoughts(messages: Sequence[Message]) -> bool:
    return any(_is_thoughtful(message) for message in messages)


def _is_thoughtful(message: Any) -> bool:
    if role_of(message) != "assistant":
        return False
    if any(message.get(name) for name in _THOUGHTS):
        return True
    content = message.get("content")
    return _THINK.search(content if isinstance(content, str) else json.dumps(content)) is not None
