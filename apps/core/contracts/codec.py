"""Frozen dataclasses to JSON and back.

Unknown and missing fields are errors: two sides that disagree about a contract must not go on in silence. The codec
knows nothing of what the fields mean.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, Union, cast

T = TypeVar("T")


class ContractError(ValueError):
    """A message does not have the shape that its contract names."""


def encode(value: Any) -> str:
    """Return `value` (a contract dataclass) as one line of JSON."""
    return json.dumps(dataclasses.asdict(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def decode(kind: type[T], text: str | bytes) -> T:
    """Return the dataclass `kind` read from JSON; raises ContractError when the shape differs."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ContractError(f"{kind.__name__}: not JSON: {error}") from error
    return cast("T", _build(kind, data, kind.__name__))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _build(kind: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is types.UnionType or origin is Union:
        return _build_optional(kind, data, where)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(cast("type", kind), data, where)
    if origin is tuple:
        return _build_tuple(kind, data, where)
    if kind is Any:
        return data
    if kind is float:
        return float(_expect(data, (int, float), where))
    return _expect(data, dict if origin in (dict, Mapping) else kind, where)


def _build_optional(kind: Any, data: Any, where: str) -> Any:
    if data is None:
        return None
    (inner,) = (arg for arg in typing.get_args(kind) if arg is not type(None))
    return _build(inner, data, where)


def _build_dataclass(kind: type, data: Any, where: str) -> Any:
    given = _expect(data, dict, where)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = given.keys() - fields.keys()
    if unknown:
        raise ContractError(f"{where}: unknown fields {sorted(unknown)}")
    required = {
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    missing = required - given.keys()
    if missing:
        raise ContractError(f"{where}: missing fields {sorted(missing)}")
    hints = _hints(kind)
    return kind(**{name: _build(hints[name], value, f"{where}.{name}") for name, value in given.items()})


def _build_tuple(kind: Any, data: Any, where: str) -> tuple[Any, ...]:
    items = _expect(data, list, where)
    (inner, *_) = typing.get_args(kind)
    if inner is int and all(type(item) is int for item in items):
        return tuple(items)
    return tuple(_build(inner, item, f"{where}[{index}]") for index, item in enumerate(items))


def _expect(data: Any, kind: Any, where: str) -> Any:
    is_bool_for_number = isinstance(data, bool) and kind is not bool
    if is_bool_for_number or not isinstance(data, kind):
        raise ContractError(f"{where}: expected {kind}, got {type(data).__name__}")
    return data
