"""What lies on a review's desk: one trajectory, or two tries side by side; what both begin with stands once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from apps.accounts.models import User
from apps.console.queries import steps
from apps.console.queries.steps import StepCard, StepGroup, StepWindow
from apps.console.transcript import Message, decode_json
from apps.trajectories.messages import dump_json
from apps.trajectories.models import Trajectory
from apps.trajectories.trie import count_shared, read_new_messages


@dataclass(frozen=True, kw_only=True)
class Side:
    """A trajectory as a reviewer sees it: its steps, no rewards. `letter` tells the two of a pair apart."""

    trajectory: Trajectory
    window: StepWindow
    letter: str = ""


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A message that both tries have at their beginning; `card` is of the step that it belongs to."""

    card: StepCard
    message: Message
    is_answer: bool


@dataclass(frozen=True, kw_only=True)
class Sides:
    """What is reviewed. `shared` messages, of the first side, are in no side's window any more."""

    sides: list[Side]
    shared: list[Shared]

    @property
    def is_unfolded(self) -> bool:
        """One of them ended with what both share: its last words are to be judged."""
        return any(not side.window.groups for side in self.sides)


def show_one(trajectory: Trajectory, *, user: User) -> Sides:
    """Return a trajectory alone."""
    return Sides(sides=[_show(trajectory, user=user)], shared=[])


def show_pair(left: Trajectory, right: Trajectory, *, user: User) -> Sides:
    """Return two tries under letters."""
    sides = [_show(row, user=user, letter=letter) for row, letter in zip((left, right), "AB", strict=True)]
    lines = [[card for card in side.window.cards if not card.step.side_call] for side in sides]
    n_shared = count_shared(*([spelled for card in line for spelled in _spell(card)] for line in lines))
    return Sides(
        sides=[replace(side, window=_cut(side.window, n_shared)) for side in sides],
        shared=_list_shared(lines[0], n_shared),
    )


def _show(trajectory: Trajectory, *, user: User, letter: str = "") -> Side:
    return Side(trajectory=trajectory, window=steps.read_window(trajectory, user=user, first=0), letter=letter)


def _spell(card: StepCard) -> list[str]:
    """Return what a step shows, message by message, so that what looks alike is equal: the ids of tool calls, which are
    new in each try, are not shown."""
    new = read_new_messages(card.step)
    shown = new[len(new) - len(card.new_messages) :]
    answer = dump_json(_drop_ids(decode_json(card.step.answer)))
    return [*(dump_json(_drop_ids(message)) for message in shown), f"answer {answer}"]


def _drop_ids(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    calls = message.get("tool_calls")
    kept = {name: value for name, value in message.items() if name not in {"tool_call_id", "tool_calls"}}
    if isinstance(calls, list):
        kept["tool_calls"] = [
            {name: value for name, value in call.items() if name != "id"} if isinstance(call, dict) else call
            for call in calls
        ]
    return kept


def _list_shared(line: Sequence[StepCard], n_shared: int) -> list[Shared]:
    said = [
        Shared(card=card, message=message, is_answer=message is card.answer)
        for card in line
        for message in (*card.new_messages, card.answer)
    ]
    return said[:n_shared]


def _cut(window: StepWindow, n_shared: int) -> StepWindow:
    """Return the window without so many messages of the main line."""
    cards: list[StepCard] = []
    for card in window.cards:
        n_said = 0 if card.step.side_call else len(card.new_messages) + 1
        if card.step.side_call or n_shared < n_said:
            n_cut = 0 if card.step.side_call else n_shared
            cards.append(replace(card, new_messages=card.new_messages[n_cut:], n_earlier=card.n_earlier + n_cut))
        n_shared = max(0, n_shared - n_said)
    groups = groupby(cards, key=lambda card: bool(card.step.side_call))
    return replace(window, groups=[StepGroup(is_side=is_side, cards=list(group)) for is_side, group in groups])
