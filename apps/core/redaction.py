"""Finds what should not be kept (e-mail addresses, keys, card numbers, …) in texts and in JSON, and takes it out.

Pure. Own patterns run on RE2, whose time grows with the text only, whatever a person writes. Knows no dialect: which
members of a JSON object are structure and stay as they are, the caller says.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import re2

from apps.core.patterns import read_fault
from apps.core.redaction_checks import cut_card, cut_iban, cut_phone

Json = Any
LONGEST_PATTERN = 500
_MEMORY = 1 << 22  # bytes that RE2 may spend on one pattern
_MANY_DIGITS = 10**11  # a JSON number from here on may be a card's; counts and times are smaller


class BadPattern(ValueError):
    """A pattern that cannot be used; the message says why."""


@dataclass(frozen=True)
class Pattern:
    """What is looked for. `cut` returns the part of a match that is really meant, "" for a false alarm."""

    name: str
    expression: str
    cut: Callable[[str], str] | None = None


_SECRETS = (
    r"\b(?:sk|pk|rk)[-_](?:[a-z]{2,10}[-_]){0,3}[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, Stripe
    r"\bclaw-[A-Za-z0-9_-]{20,}",
    r"\bgh[pousr]_[A-Za-z0-9]{30,}",
    r"\bgithub_pat_[A-Za-z0-9_]{22,}",
    r"\bglpat-[A-Za-z0-9_-]{20,}",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    r"\bAIza[0-9A-Za-z_-]{35}",
    r"\bhf_[A-Za-z0-9]{30,}",
    r"\bnpm_[A-Za-z0-9]{36}",
    r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}",  # JSON web tokens
    r"(?i:\bbearer)\s+[A-Za-z0-9._~+/-]{19,}[A-Za-z0-9_~+/-]=*",
    r"://[^\s/:@]+:[^\s/@]+@",  # user:password in an address
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----",
)

BUILT_IN = (
    Pattern("email", r"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.)+[A-Za-z]{2,24}"),
    Pattern("secret", "|".join(_SECRETS)),
    Pattern("iban", r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{2,4}){3,8}\b", cut_iban),
    Pattern("credit_card", r"\b[2-6](?:[ -]?[0-9]){12,18}\b", cut_card),
    Pattern(
        "phone",
        r"\+[1-9][0-9]{0,2}(?:[ .\-/]?\(?[0-9]{1,5}\)?){2,7}"
        r"|\(?\b[2-9][0-9]{2}\)?[ .-] ?[2-9][0-9]{2}[ .-][0-9]{4}\b",
        cut_phone,
    ),
)
BUILT_IN_NAMES = tuple(pattern.name for pattern in BUILT_IN)


def check_pattern(expression: str) -> None:
    """Raise BadPattern when this cannot serve as an own pattern."""
    if len(expression) > LONGEST_PATTERN:
        raise BadPattern(f"a pattern may have {LONGEST_PATTERN} characters")
    if any(match.span()[0] == match.span()[1] for match in _compile(expression).finditer("a 1")):
        raise BadPattern("it matches the empty text, so it would match everywhere")


def _compile(expression: str, *, memory: int = _MEMORY) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = memory
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        raise BadPattern(f"RE2 does not take it: {read_fault(error)}") from error


@dataclass
class Redactor:
    """Takes matches of its patterns out of texts: `[redacted:email]` stands in their place.

    `kept`: members of JSON objects whose values are structure. In an object that is a member of `free`, and in JSON in
    a string, nothing is: names of members and long numbers are looked at there too.
    """

    patterns: Sequence[Pattern]
    kept: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    _compiled: list[tuple[Pattern, Any]] = field(init=False)
    _any: Any = field(init=False)  # one search for all: most strings of most calls hold nothing

    def __post_init__(self) -> None:
        self._compiled = [(pattern, _compile(pattern.expression)) for pattern in self.patterns]
        expressions = [f"(?:{pattern.expression})" for pattern in self.patterns]
        self._any = _compile("|".join(expressions), memory=_MEMORY * (1 + len(expressions)))

    def redact_text(self, text: str, found: Counter[str]) -> str:
        """Return the text without what matches, and count the matches in `found`."""
        data = text.encode(errors="replace")
        if self._any.search(data) is None:
            return text
        for pattern, compiled in self._compiled:
            match = compiled.search(data)
            if match is not None:
                data = _replace_matches(data, match, pattern=pattern, compiled=compiled, found=found)
        return data.decode(errors="replace")

    def redact_json(self, data: bytes, found: Counter[str]) -> bytes:
        """Return the JSON with its strings (those inside strings too) redacted; the same bytes when nothing matches.

        What is no JSON is treated as a text.
        """
        before = found.total()
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            redacted = self.redact_text(data.decode(errors="replace"), found).encode()
        else:
            redacted = orjson.dumps(self._redact(value, found, is_free=False))
            self._redact(_find_twins(data), found, is_free=False)
        return redacted if found.total() > before else data

    def _redact(self, value: Json, found: Counter[str], *, is_free: bool) -> Json:
        if isinstance(value, str):
            return self._redact_string(value, found)
        if isinstance(value, list):
            return [self._redact(item, found, is_free=is_free) for item in value]
        if isinstance(value, dict):
            return self._redact_object(value, found, is_free=is_free)
        if is_free and type(value) is int and value >= _MANY_DIGITS:
            digits = str(value)
            redacted = self.redact_text(digits, found)
            return value if redacted == digits else redacted
        return value

    def _redact_object(self, value: dict[str, Json], found: Counter[str], *, is_free: bool) -> dict[str, Json]:
        redacted: dict[str, Json] = {}
        for name, item in value.items():
            if not is_free and name in self.kept and not isinstance(item, (dict, list)):
                redacted[name] = item
                continue
            is_below_free = is_free or (name in self.free and isinstance(item, dict))
            shown = self.redact_text(name, found) if is_free else name
            redacted[shown] = self._redact(item, found, is_free=is_below_free)
        return redacted

    def _redact_string(self, text: str, found: Counter[str]) -> str:
        """Redact a string; JSON in it (a tool's arguments) stays JSON."""
        if len(text) > 1 and text[0] in "{[" and text[-1] in "}]":
            try:
                inner = orjson.loads(text)
            except orjson.JSONDecodeError:
                return self.redact_text(text, found)
            before = found.total()
            redacted = self._redact(inner, found, is_free=True)
            self._redact(_find_twins(text), found, is_free=True)
            return orjson.dumps(redacted).decode() if found.total() > before else text
        return self.redact_text(text, found)


def _find_twins(data: str | bytes) -> list[Json]:
    """Return the values of all members that are in one object twice: of two a reader sees the last only."""
    twins: list[Json] = []

    def join(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        members = dict(pairs)
        if len(members) < len(pairs):
            twins.extend(value for _, value in pairs)
        return members

    json.loads(data, object_pairs_hook=join)
    return twins


def _replace_matches(data: bytes, match: Any, *, pattern: Pattern, compiled: Any, found: Counter[str]) -> bytes:
    """Return UTF-8 text with the matches from `match` on replaced.

    What follows the meant part of a match is looked at again: it may be the beginning of the next.
    """
    parts: list[bytes] = []
    at = 0
    while match is not None:
        start, end = match.span()
        if pattern.cut is None:
            n_meant = end - start
        else:
            n_meant = len(pattern.cut(data[start:end].decode(errors="replace")).encode())
        parts.append(data[at:start])
        if n_meant:
            parts.append(b"[redacted:%b]" % pattern.name.encode())
            found[pattern.name] += 1
        at = start + n_meant
        match = compiled.search(data, at if n_meant else _next_character(data, at))
    return b"".join([*parts, data[at:]])


def _next_character(data: bytes, at: int) -> int:
    at += 1
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at
