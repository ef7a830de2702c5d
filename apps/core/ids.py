"""Prefixed, sortable ids: `traj_01jk…`. The part after the prefix is a UUIDv7 in Crockford's base 32, lower case."""

import re
from datetime import UTC, datetime

import uuid_utils

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
LENGTH = 26
ID_MAX_LENGTH = 32
_PAIRS = [one + two for one in ALPHABET for two in ALPHABET]
_SHIFTS = range(5 * (LENGTH - 2), -1, -10)
_PATTERN = re.compile(rf"[a-z]{{2,5}}_[{ALPHABET}]{{{LENGTH}}}")


def new_id(prefix: str) -> str:
    """Return a new id; ids made later sort later (millisecond grain, then a counter)."""
    return _spell(prefix, uuid_utils.uuid7().int)


def first_id(prefix: str, moment: datetime) -> str:
    """Return the bound between the ids that were made before `moment` (to the millisecond) and those made since."""
    return _spell(prefix, round(moment.timestamp() * 1000) << 80)


def read_time(value: str) -> datetime:
    """Return when an id was made, or the moment of a bound, to the millisecond."""
    number = 0
    for digit in value.rpartition("_")[2]:
        number = number << 5 | ALPHABET.index(digit)
    return datetime.fromtimestamp((number >> 80) / 1000, tz=UTC)


def _spell(prefix: str, number: int) -> str:
    return f"{prefix}_{''.join([_PAIRS[(number >> shift) & 1023] for shift in _SHIFTS])}"


def is_any_id(value: str) -> bool:
    """Say whether `value` looks like an id of anything, as the place in a list does."""
    return _PATTERN.fullmatch(value) is not None


def is_id(value: str, prefix: str) -> bool:
    """Say whether `value` looks like an id with this prefix."""
    return value.startswith(f"{prefix}_") and is_any_id(value)
