"""What pydantic finds wrong, in words for people: its own tell of its validation, of Python's kinds and of patterns."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic_core import ErrorDetails

_NUMBER, _WHOLE, _OBJECT = "a number is needed", "a whole number is needed", "an object in braces is needed"
_TIME = "a date and time is needed, as in 2026-01-31T12:00:00Z"
_LIST, _YES_OR_NO = "a list is needed", "true or false is needed"
_WORDS: Mapping[str, str] = {
    "missing": "this is missing",
    "extra_forbidden": "nothing of this name is known",
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": _NUMBER,
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "bool_type": _YES_OR_NO,
    "bool_parsing": _YES_OR_NO,
    "string_type": "a text is needed",
    "dict_type": _OBJECT,
    "model_type": _OBJECT,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "datetime_type": _TIME,
    "datetime_parsing": _TIME,
    "datetime_from_date_parsing": _TIME,
    "literal_error": "it must be {expected}",
    "enum": "it must be {expected}",
    "string_too_short": "it must have {min_length} characters or more",
    "string_too_long": "it may have {max_length} characters",
    "too_short": "there must be at least {min_length}; here are {actual_length}",
    "too_long": "there may be {max_length} at most; here are {actual_length}",
    "greater_than": "it must be above {gt}",
    "greater_than_equal": "it must be {ge} or more",
    "less_than": "it must be below {lt}",
    "less_than_equal": "it must be {le} or less",
}


def tell_fault(fault: ErrorDetails, *, spelled: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return what is wrong with one value; where it stands, the caller says. `spelled` are the words for patterns."""
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "string_pattern_mismatch" and context["pattern"] in spelled:
        return spelled[context["pattern"]]
    if kind == "string_too_short" and context["min_length"] == 1:
        return "this may not be empty"
    if kind not in _WORDS:
        return fault["msg"].removeprefix("Value error, ")
    return _WORDS[kind].format(**{name: _spell(value) for name, value in context.items()})


def _spell(value: Any) -> str:
    return f"{value:,.15g}" if isinstance(value, (int, float)) else str(value)
