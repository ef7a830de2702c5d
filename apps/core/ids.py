"""Prefixed, sortable ids: `traj_01jk…`. The part after the prefix is a UUIDv7 in Crockford's base 32, lower case."""

import re

import uuid_utils

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
LENGTH = 26
ID_MAX_LENGTH = 32
_PATTERN = re.compile(rf"[a-z]{{2,5}}_[{ALPHABET}]{{{LENGTH}}}")


def new_id(prefix: str) -> str:
    """Return a new id; ids made later sort later (millisecond grain, then a counter)."""
    number = uuid_utils.uuid7().int
    digits = [ALPHABET[(number >> shift) & 31] for shift in range(5 * (LENGTH - 1), -1, -5)]
    return f"{prefix}_{''.join(digits)}"


def is_id(value: str, prefix: str) -> bool:
    """Say whether `value` looks like an id with this prefix."""
    return value.startswith(f"{prefix}_") and _PATTERN.fullmatch(value) is not None
