"""Reads the text out of `{"input": "…"}` while it is being written."""

import json
import re

from apps.gateway.responses.tools import CUSTOM_INPUT

_HEAD = re.compile(rf'\s*\{{\s*"{CUSTOM_INPUT}"\s*:\s*"')
_WHOLE_CHARACTERS = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_HALF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class FreeformReader:
    """Feed it the arguments as they come. Arguments of another shape are themselves the text, given at the end."""

    def __init__(self) -> None:
        self._written = ""
        self._read_to: int | None = None  # where in `_written` the text goes on
        self._is_over = False

    def feed(self, arguments: str) -> str:
        """Return what of the text is complete now."""
        self._written += arguments
        if self._read_to is None and (head := _HEAD.match(self._written)):
            self._read_to = head.end()
        return "" if self._read_to is None or self._is_over else self._read(self._read_to)

    def end(self) -> str:
        """Return what is left when no more arguments come."""
        return self._written if self._read_to is None else ""

    def _read(self, start: int) -> str:
        found = _WHOLE_CHARACTERS.match(self._written, start)
        end = found.end() if found else start
        self._is_over = self._written[end : end + 1] == '"'
        if not self._is_over and _HALF_PAIR.search(self._written, start, end):
            end -= 6  # the other half of the character is still to come
        self._read_to = end
        return _decode(self._written[start:end])


def _decode(escaped: str) -> str:
    text: str = json.loads(f'"{escaped}"', strict=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a character cannot be sent
