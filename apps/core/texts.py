"""Says what no column can hold: NUL, half a surrogate pair, JSON that is nested too deeply or holds no JSON numbers."""

import math
from typing import Any

MAX_DEPTH = 100
NUL_OR_HALF = "this holds characters that cannot be stored (NUL or half a surrogate pair)"
NOT_FINITE = "NaN and Infinity are no numbers of JSON"
TOO_DEEP = f"this is nested more than {MAX_DEPTH} levels deep"


def is_storable(text: str) -> bool:
    """Say whether Postgres takes the text, in a column and in a question."""
    if "\x00" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_fault(value: Any) -> str:
    """Return in words why this JSON value cannot be stored, "" when it can. Names of members are looked at too."""
    waiting: list[tuple[Any, int]] = [(value, 0)]
    while waiting:
        part, depth = waiting.pop()
        if isinstance(part, str):
            if not is_storable(part):
                return NUL_OR_HALF
            continue
        if isinstance(part, float) and not math.isfinite(part):
            return NOT_FINITE
        if not isinstance(part, (dict, list)):
            continue
        if depth >= MAX_DEPTH:
            return TOO_DEEP
        parts = [*part, *part.values()] if isinstance(part, dict) else part
        waiting += [(inner, depth + 1) for inner in parts]
    return ""
