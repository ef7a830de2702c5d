"""Checks single values of a request and names the one at fault, in Anthropic's notation (`messages.0.content`)."""

from typing import Any

from apps.gateway.dialect import Json
from apps.gateway.errors import ApiError, bad_request


def wrong(path: str, what: str) -> ApiError:
    """Return the error that names a field."""
    return bad_request(f"{path}: {what}", param=path)


def take_object(value: Any, path: str) -> Json:
    if not isinstance(value, dict):
        raise wrong(path, "Input should be an object")
    return value


def take_text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise wrong(path, "Input should be a string" if value is not None else "Field required")
    return value


def take_objects(value: Any, path: str) -> list[Json]:
    """Return a list of objects."""
    if not isinstance(value, list):
        raise wrong(path, "Input should be a list")
    return [take_object(item, f"{path}.{index}") for index, item in enumerate(value)]


def take_blocks(value: Any, path: str) -> list[Json]:
    """Return a content's blocks; a string is one block of text. No content is no block."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise wrong(path, "Input should be a string or a list of blocks" if value is not None else "Field required")
    blocks = take_objects(value, path)
    for index, block in enumerate(blocks):
        take_text(block.get("type"), f"{path}.{index}.type")
    return blocks
