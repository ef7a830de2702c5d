"""Checks a value by a JSON schema (2020-12), in a time. Schema and value are both other people's: a schema of a few
lines can have each of its parts looked at twice by the one before, and would keep the graders of every team.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from referencing import Registry

from apps.feedback.graders.settings import compile_pattern

MAX_S = 3.0
SHOWN = 80
_KINDS = {
    "object": "an object in braces",
    "array": "a list",
    "string": "a text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
}
_own = threading.local()


class TooLongError(Exception):
    """It cannot be said in time."""


def find_fault(schema: dict[str, Any], value: Any) -> str:
    """Return what is wrong with the value first, "" when nothing is.

    Raises TooLongError, RecursionError, and Unresolvable for a reference that leads out of the schema.
    """
    fault = _find_first(_Validator(schema, registry=Registry()), value)
    return "" if fault is None else fault.message


def find_schema_fault(schema: dict[str, Any]) -> str:
    """Return what makes this no schema first, and where it stands; "" when nothing does. Raises TooLongError."""
    fault = _find_first(_Validator(Draft202012Validator.META_SCHEMA), schema)
    if fault is None:
        return ""
    place = _cut(" → ".join(map(str, fault.absolute_path)))
    found = _cut(json.dumps(fault.instance, ensure_ascii=False))
    return f"at {place} stands {found}, {_tell_what_belongs(fault)}"


def _tell_what_belongs(fault: ValidationError) -> str:
    if fault.validator != "type":
        return "which means nothing there"
    kinds: Any = fault.validator_value
    return f"where {' or '.join(_KINDS[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds))} belongs"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _find_first(validator: Any, value: Any) -> ValidationError | None:
    with _time():
        return next(iter(validator.iter_errors(value)), None)


@contextmanager
def _time() -> Iterator[None]:
    _own.end_at = time.monotonic() + MAX_S
    try:
        yield
    finally:
        _own.end_at = None


def _look_at_time() -> None:
    if _own.end_at is not None and time.monotonic() > _own.end_at:
        raise TooLongError(f"it takes more than {MAX_S:g} s")


def _timed(check: Callable[..., Any]) -> Callable[..., Iterator[ValidationError]]:
    def look(*args: Any) -> Iterator[ValidationError]:
        _look_at_time()
        yield from check(*args) or ()

    return look


def _match_pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Any:
    if isinstance(instance, str) and not compile_pattern(pattern).search(instance):
        yield ValidationError(f"{instance[:100]!r} does not match {pattern!r}")


def _match_properties(validator: Any, patterns: dict[str, Any], instance: Any, _schema: Any) -> Any:
    if not isinstance(instance, dict):
        return
    for pattern, schema in patterns.items():
        compiled = compile_pattern(pattern)
        for name, value in instance.items():
            if compiled.search(name):
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _find_twins(_validator: Any, is_wanted: Any, instance: Any, _schema: Any) -> Any:
    """Like jsonschema's, which compares each item with each."""
    if not is_wanted or not isinstance(instance, list):
        return
    seen = set()
    for item in instance:
        _look_at_time()
        seen.add(_spell(item))
    if len(seen) < len(instance):
        yield ValidationError(f"{str(instance)[:100]} has non-unique elements")


def _spell(value: Any) -> str:
    """Return the one spelling of all values that JSON schemas take for the same: 1 is 1.0, and no true."""
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{json.dumps(name)}:{_spell(inner)}" for name, inner in value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_spell, value)) + "]"
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


# Python's own patterns can take time without end; jsonschema would fetch references from the network.
_OWN = {"pattern": _match_pattern, "patternProperties": _match_properties, "uniqueItems": _find_twins}
_Validator: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {name: _timed(check) for name, check in {**Draft202012Validator.VALIDATORS, **_OWN}.items()},
)
