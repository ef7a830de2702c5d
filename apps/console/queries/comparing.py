"""Two trajectories side by side: their steps in order, where they part to the word, and likely others."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import zip_longest

from apps.accounts.models import User
from apps.console.queries import steps
from apps.console.transcript import decode_json, read_message
from apps.trajectories.blindness import Hidden
from apps.trajectories.messages import spoken_text
from apps.trajectories.models import Trajectory
from apps.trajectories.search.language import parse_query
from apps.trajectories.search.services import find_page

LIKELY = 12
LOOKED_AT = 200  # the newest of its agent, among which those with its first words come first
MOST_WORDS = 2000  # of an answer: what finds the words that differ takes time in proportion to their square

Piece = tuple[str, bool]  # some words, and whether they are missing on the other side


@dataclass(frozen=True, kw_only=True)
class Row:
    """The steps of one place in both; `is_same`: they were asked and answered the same. Where only the answers differ,
    what was asked is left out of the cards."""

    left: steps.StepCard | None
    right: steps.StepCard | None
    is_same: bool = False
    is_asked_the_same: bool = False
    words: tuple[list[Piece], list[Piece]] | None = None


def compare(left: Trajectory, right: Trajectory, *, user: User) -> list[Row]:
    """Return the first steps of the main lines, place by place."""
    lines = [
        [card for card in steps.read_window(one, user=user, first=0).cards if not card.step.side_call]
        for one in (left, right)
    ]
    return [_compare_steps(one, other) for one, other in zip_longest(*lines)]


def _compare_steps(one: steps.StepCard | None, other: steps.StepCard | None) -> Row:
    if one is None or other is None:
        return Row(left=one, right=other)
    if one.new_messages != other.new_messages:
        return Row(left=one, right=other, words=mark_words(_words_of(one), _words_of(other)))
    return Row(
        left=replace(one, new_messages=[]),
        right=replace(other, new_messages=[]),
        is_same=one.answer == other.answer,
        is_asked_the_same=True,
        words=mark_words(_words_of(one), _words_of(other)),
    )


def _words_of(card: steps.StepCard) -> str:
    """What the answer says, then each tool that it calls with the arguments."""
    answer = decode_json(card.step.answer)
    if not isinstance(answer, dict):
        return ""
    calls = read_message(answer, is_whole=True).tool_calls
    texts = [(call.name, call.arguments) for call in calls]
    called = [f"{name} {text.head}{text.middle}{text.tail}" for name, text in texts]
    return "\n".join(words for words in (spoken_text(answer), *called) if words)


def mark_words(left: str, right: str) -> tuple[list[Piece], list[Piece]] | None:
    """Return both texts in pieces that the other has, or has not; None where nothing is alike, or they are too long."""
    one, other = (re.findall(r"\S+\s*|\s+", text) for text in (left, right))
    if max(len(one), len(other)) > MOST_WORDS:
        return None
    found = SequenceMatcher(a=one, b=other).get_opcodes()
    if all(tag != "equal" for tag, *_ in found):
        return None
    return (
        [("".join(one[begin:end]), tag != "equal") for tag, begin, end, _, _ in found if begin < end],
        [("".join(other[begin:end]), tag != "equal") for tag, _, _, begin, end in found if begin < end],
    )


def list_likely(trajectory: Trajectory, *, query: str, hidden: Hidden, but: str = "") -> Sequence[Trajectory]:
    """Return what one would compare it with, `but` the one that stands beside it: what the search finds, or without one
    other tries of its group, then its agent's, those with the same first words first. Raises SearchError, TooSlow."""
    if query:
        page = find_page(
            project=trajectory.project, query=parse_query(query), before=None, limit=LIKELY + 2, hidden=hidden
        )
        return [row for row in page.items if row.pk not in {trajectory.pk, but}][:LIKELY]
    rows = Trajectory.objects.of_project(trajectory.project).exclude(pk=trajectory.pk).order_by("-pk")
    tries = list(rows.filter(group=trajectory.group)[: LIKELY + 1]) if trajectory.group else []
    of_agent = [row for row in rows.filter(agent=trajectory.agent_id)[:LOOKED_AT] if row not in tries]
    found = [*tries, *sorted(of_agent, key=lambda row: row.title != trajectory.title)]
    return [row for row in found if row.pk != but][:LIKELY]
