"""The fields of the search language: their names, what they want, and how a value is read. Knows neither grammar nor
tables."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from apps.trajectories.models import Channel, PrefixBreak, TrajectoryState

NONE, ANY = "none", "any"
LARGEST = 2**53  # beyond it a float no longer counts one by one
HAS = ("error", "reward", "tag", "group", "side", "parent")
IS = (*TrajectoryState.values, "excluded")
LABELS = (NONE, ANY, "human", "end_user", "environment", "rule", "judge", "next_state")
BREAKS = tuple(cause for cause in PrefixBreak.values if cause)
_AGO = re.compile(r"(\d{1,5})(m|h|d|w)")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
DAY = timedelta(days=1)


class BadValue(ValueError):
    """A value that its field does not take; what it wants, where that is more than the field says."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field. `is_ordered`: < and > mean something. `words` are values that stand for themselves."""

    name: str
    wants: str
    read: Callable[[str], Any] = str
    is_ordered: bool = False
    words: tuple[str, ...] = ()
    example: str = ""

    def find_fault(self, value: str, *, is_compared: bool) -> str:
        """Return in words why the field does not take the value, "" when it does."""
        if not is_compared and value in self.words:
            return ""
        try:
            self.read(value)
        except BadValue as error:
            return f"{self.name} wants {error if error.args else self.wants}, not {value[:40]!r}"
        return ""


def one_of(*values: str) -> Callable[[str], str]:
    """Return a reader that takes these values only."""

    def read(value: str) -> str:
        if value not in values:
            raise BadValue
        return value

    return read


def read_number(value: str) -> float:
    """Return a finite number."""
    try:
        number = float(value)
    except ValueError:
        raise BadValue from None
    if not math.isfinite(number):
        raise BadValue
    return number


def read_count(value: str) -> int:
    """Return a whole number from 0."""
    if not (value.isascii() and value.isdecimal()):
        raise BadValue
    if len(value.lstrip("0")) > len(str(LARGEST)) or int(value) > LARGEST:
        raise BadValue(f"a whole number up to {LARGEST}")
    return int(value)


def read_version(value: str) -> int:
    """Return the number of a version, `v3` or `3`."""
    return read_count(value.removeprefix("v"))


def read_moment(value: str, *, now: datetime | None = None) -> datetime:
    """Return the moment that a day (its beginning), a time or an age like 36h means; UTC where no zone is said."""
    if ago := _AGO.fullmatch(value):
        return (now or datetime.now(UTC)) - int(ago[1]) * _UNITS[ago[2]]
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadValue from None


def read_end(value: str, *, now: datetime | None = None) -> datetime:
    """Return the moment before which something has to lie: for a day the beginning of the next one."""
    moment = read_moment(value, now=now)
    is_day = re.fullmatch(r"\d{4}-?\d\d-?\d\d", value) is not None
    try:
        return moment + DAY if is_day else moment
    except OverflowError:
        raise BadValue from None


_MOMENT = "a day (2026-11-01), a time (2026-11-01T09:30) or an age (36h, 7d)"
_COUNT = "a whole number"

_ALL = (
    Field(name="agent", wants="an agent's slug", example="agent:shop"),
    Field(
        name="reward",
        wants=f"a number, {NONE} or {ANY}",
        read=read_number,
        is_ordered=True,
        words=(NONE, ANY),
        example="reward<0.3",
    ),
    Field(name="turns", wants=_COUNT, read=read_count, is_ordered=True, example="turns>5"),
    Field(name="tokens", wants=_COUNT, read=read_count, is_ordered=True, example="tokens>10000"),
    Field(name="has", wants=f"one of {', '.join(HAS)}", read=one_of(*HAS), example="has:error"),
    Field(name="is", wants=f"one of {', '.join(IS)}", read=one_of(*IS), example="is:open"),
    Field(name="version", wants="a version's number", read=read_version, is_ordered=True, example="version:12"),
    Field(
        name="channel",
        wants=f"one of {', '.join(Channel.values)}",
        read=one_of(*Channel.values),
        example="channel:train",
    ),
    Field(name="label", wants=f"one of {', '.join(LABELS)}", read=one_of(*LABELS), example="label:none"),
    Field(name="grader", wants="the name of a grader that says something of it", example="grader:polite"),
    Field(
        name="break",
        wants=f"one of {', '.join(BREAKS)}, {ANY}, {NONE}",
        read=one_of(*BREAKS, ANY, NONE),
        example="break:template",
    ),
    Field(name="tag", wants="a tag", example="tag:refunds"),
    Field(name="group", wants="a group's name", example="group:task-7"),
    Field(name="session", wants="the session's name as the client said it", example="session:main"),
    Field(name="id", wants="a trajectory's id", example="id:traj_01jk…"),
    Field(name="from", wants=_MOMENT, read=read_moment, example="from:2026-11-01"),
    Field(name="to", wants=_MOMENT, read=read_end, example="to:7d"),
)
FIELDS = {field.name: field for field in _ALL}
MEANT = {
    "state": "is",
    "status": "is",
    "steps": "turns",
    "score": "reward",
    "since": "from",
    "until": "to",
    "model": "version",
}
