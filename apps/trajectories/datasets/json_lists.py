"""A file that is one JSON list, as data sets are often passed on: its items, one after the other, without holding it.

Knows nothing of what items say.
"""

import json
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import IO

_CHUNK = 1 << 20
_SPACE = " \t\r\n"
_DECODER = json.JSONDecoder()


class BrokenList(Exception):
    """From here on the items cannot be told apart; its words say why."""


def begins_list(data: bytes) -> bool:
    """Say whether a file that begins so is a list over several lines, or of objects: no line of a file of lines."""
    text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith(b"[") and text[1:].lstrip().startswith((b"{", b"]"))


def split_list(file: IO[bytes], *, max_item: int) -> Iterator[str]:
    """Yield the text of each item on one line. Raises BrokenList; `max_item`: characters."""
    reader = _Reader(file)
    reader.take("[")
    while not reader.has("]"):
        yield reader.take_item(max_item=max_item)
        if not reader.has("]"):
            reader.take(",")
    reader.take("]")
    if reader.has_more():
        raise BrokenList("more stands behind the list's end")


class _Reader:
    """Reads as far ahead as the next item needs."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decode = getincrementaldecoder("utf-8-sig")().decode
        self._text = ""
        self._at = 0
        self._is_whole = False  # nothing is left in the file
        self._fault = ""  # why no more of it can be read

    def _read_on(self) -> None:
        """Double what is held, so that an item is looked at a few times only."""
        data = self._file.read(max(_CHUNK, len(self._text) - self._at))
        self._is_whole = not data
        try:
            more = self._decode(data, final=self._is_whole)
        except UnicodeDecodeError as error:
            self._is_whole, self._fault = True, f"its text is not UTF-8: {error}"
            more = bytes(error.object[: error.start]).decode()
        self._text, self._at = self._text[self._at :] + more, 0

    def _break(self, reason: str) -> BrokenList:
        return BrokenList(self._fault or reason)

    def has_more(self) -> bool:
        """Say whether anything but spaces follows."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text) or self._is_whole:
                return self._at < len(self._text)
            self._read_on()

    def has(self, mark: str) -> bool:
        """Say whether the mark comes next, spaces apart."""
        return self.has_more() and self._text[self._at] == mark

    def take(self, mark: str) -> None:
        if not self.has(mark):
            found = self._text[self._at : self._at + 20]
            raise self._break(f"{mark!r} should stand here, not {found!r}" if found else f"{mark!r} is missing")
        self._at += 1

    def take_item(self, *, max_item: int) -> str:
        while True:
            try:
                _, end = _DECODER.raw_decode(self._text, self._at)
                fault = ""
            except (ValueError, RecursionError) as error:
                end, fault = -1, str(error)
            if not fault and (end < len(self._text) or self._is_whole):
                item = self._text[self._at : end]
                self._at = end
                return item.replace("\n", " ").replace("\r", " ")  # in a text they are escaped
            if self._is_whole or len(self._text) - self._at > max_item:
                raise self._break(f"this item is not JSON, or too long: {fault}")
            self._read_on()
