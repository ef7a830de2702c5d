"""What a pydantic model says of one of its settings, for the forms that are made from such models."""

import types
import typing
from typing import Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo


def kinds_of(info: FieldInfo) -> set[Any]:
    """Return the types that a setting may have, unions and annotations taken apart."""
    annotation = info.annotation
    is_union = typing.get_origin(annotation) in {typing.Union, types.UnionType}
    parts = typing.get_args(annotation) if is_union else (annotation,)
    return {typing.get_args(part)[0] if typing.get_origin(part) is typing.Annotated else part for part in parts}


def bounds_of(info: FieldInfo) -> tuple[float | None, float | None]:
    """Return between what a number lies, None where nothing bounds it."""
    low: Any = None
    high: Any = None
    for limit in info.metadata:
        if isinstance(limit, Ge):
            low = limit.ge
        elif isinstance(limit, Gt):
            low = limit.gt
        elif isinstance(limit, Le):
            high = limit.le
        elif isinstance(limit, Lt):
            high = limit.lt
    return low, high
