"""JSON of files that strangers made: what `json` lets through and nothing behind it could say again is refused."""

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from apps.core.texts import NOT_FINITE

DEEPEST = 254  # levels: no deeper than an agent's call, whose messages exports hold
TOO_DEEP = f"this is nested more than {DEEPEST} levels deep"
HALF_PAIR = "this holds half a surrogate pair, which is no text"
_PERHAPS_ENDLESS = re.compile(r"[0-9][eE]\+?[0-9]{3}|[0-9]{300}")  # digits that a float may have no room for


_PERHAPS_HALF = re.compile(r"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]")


class NotJson(ValueError):
    """The text is no JSON; its words say why."""


def read_json(text: str) -> Any:
    """Return the value. Raises NotJson, also for NaN, Infinity, numbers that would become it, and half characters."""
    read_float = _read_finite if _PERHAPS_ENDLESS.search(text) else None  # None: `json`'s own, which is quick
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=read_float)
        if _PERHAPS_HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except NotJson:
        raise
    except RecursionError as error:
        raise NotJson(TOO_DEEP) from error
    except UnicodeEncodeError as error:
        raise NotJson(HALF_PAIR) from error
    except ValueError as error:
        raise NotJson(f"this is not JSON: {error}") from error


def _read_finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise NotJson(NOT_FINITE)
    return number


def _refuse_constant(_name: str) -> NoReturn:
    raise NotJson(NOT_FINITE)


def is_too_deep(value: Any) -> bool:
    """Say whether the value has more than `DEEPEST` levels: nobody who reads it deep inside a page could walk it."""
    level, n_levels = [value], 0
    while level := [part for outer in level if isinstance(outer, (dict, list)) for part in _parts_of(outer)]:
        n_levels += 1
        if n_levels > DEEPEST:
            return True
    return False


def _parts_of(outer: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return outer.values() if isinstance(outer, dict) else outer
