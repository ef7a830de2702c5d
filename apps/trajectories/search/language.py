"""The search language: `agent:shop reward<0.3 -has:error "late refund"`. Reads it into terms and writes terms again.

Terms stand beside each other and all must hold; `-` before one turns it round; several values after a colon, with
commas between them, are alternatives. What stands without a field is looked for in the messages, a text in quotes as a
phrase.
Knows which fields there are (`fields.py`), nothing of tables.
"""

import re
from dataclasses import dataclass, field
from difflib import get_close_matches

from apps.core.errors import InvalidInput
from apps.core.texts import NUL_OR_HALF, is_storable
from apps.trajectories.search.fields import FIELDS, MEANT, Field

MAX_LENGTH = 4000  # a page of ids fits
MAX_TERMS = 30
OPERATORS = (":", "<=", ">=", "<", ">")
_NAME = re.compile(r"([A-Za-z_]+)(:|<=|>=|<|>|=)")
_BARE_WORD = re.compile(r'[^\s"]+')
_BARE_VALUE = re.compile(r'[^\s",]+')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_PLAIN_WORD = re.compile(r'[^\s"\\:<>=,-][^\s"\\:<>=,]*')
_PLAIN_VALUE = re.compile(r'[^\s"\\,]+')


class SearchError(InvalidInput):
    """The text is no search. `position` counts characters from 0; `pointer` is the text and a caret below it."""

    def __init__(self, reason: str, *, text: str, position: int) -> None:
        line = "".join(letter if letter.isprintable() else " " for letter in text)
        self.reason = reason
        self.position = position
        self.pointer = f"{line}\n{' ' * position}^"
        super().__init__(f"q, character {position + 1}: {reason}\n{self.pointer}", field="q")


@dataclass(frozen=True, kw_only=True)
class Filter:
    """One field compared with one value, or, after a colon, with any of several."""

    field: str
    operator: str
    values: tuple[str, ...]
    is_negated: bool = False


@dataclass(frozen=True, kw_only=True)
class Words:
    """A word or phrase that must be among what was said."""

    text: str
    is_negated: bool = False


Term = Filter | Words


@dataclass(frozen=True, kw_only=True)
class Query:
    """All terms must hold. No term: everything. `looked_up`: what asking it once has found out about its terms."""

    terms: tuple[Term, ...] = ()
    looked_up: dict[str, frozenset[str] | None] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return " ".join(map(print_term, self.terms))

    @property
    def asks_for_judgements(self) -> bool:
        """What it finds tells of rewards or labels."""
        filters = [term for term in self.terms if isinstance(term, Filter)]
        has = {value for term in filters if term.field == "has" for value in term.values}
        return "reward" in has or any(term.field in {"reward", "label", "grader"} for term in filters)

    def replacing(self, *fields: str, by: tuple[Term, ...] = ()) -> "Query":
        """Return the query without filters on these fields, and with other terms at its end."""
        kept = tuple(term for term in self.terms if not (isinstance(term, Filter) and term.field in fields))
        return Query(terms=kept + by)


def print_term(term: Term) -> str:
    """Write a term so that `parse_query` reads the same again."""
    sign = "-" if term.is_negated else ""
    if isinstance(term, Words):
        return sign + (term.text if _PLAIN_WORD.fullmatch(term.text) else _quote(term.text))
    values = (value if _PLAIN_VALUE.fullmatch(value) else _quote(value) for value in term.values)
    return f"{sign}{term.field}{term.operator}{','.join(values)}"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def parse_query(text: str) -> Query:
    """Read a search. Raises SearchError, which says where and what may stand there."""
    if len(text) > MAX_LENGTH:
        raise SearchError(
            f"a search may have {MAX_LENGTH} characters", text=text[: MAX_LENGTH + 1], position=MAX_LENGTH
        )
    if not is_storable(text):
        place = next(place for place, letter in enumerate(text) if not is_storable(letter))
        raise SearchError(NUL_OR_HALF, text=text.encode(errors="replace").decode(), position=place)
    return _Reader(text).read()


def _suggest(name: str) -> str:
    """Return the field that was meant, in words, else all there are."""
    meant = MEANT.get(name.lower()) or next(iter(get_close_matches(name.lower(), FIELDS, n=1)), "")
    return f": do you mean {meant}, as in {FIELDS[meant].example}?" if meant else f"; there are {', '.join(FIELDS)}."


class _Reader:
    """Walks over the text once, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> Query:
        terms: list[Term] = []
        self._skip_space()
        while self._at < len(self._text):
            if len(terms) == MAX_TERMS:
                raise self._error(f"a search may have {MAX_TERMS} terms")
            terms.append(self._read_term())
            if self._at < len(self._text) and not self._text[self._at].isspace():
                raise self._error("a space must stand between two terms")
            self._skip_space()
        return Query(terms=tuple(terms))

    def _skip_space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _error(self, reason: str, *, at: int | None = None) -> SearchError:
        return SearchError(reason, text=self._text, position=self._at if at is None else at)

    def _read_term(self) -> Term:
        is_negated = self._text[self._at] == "-"
        self._at += is_negated
        named = _NAME.match(self._text, self._at)
        if named:
            return self._read_filter(named, is_negated=is_negated)
        text = self._read_text(_BARE_WORD)
        return Words(text=text, is_negated=is_negated)

    def _read_filter(self, named: re.Match[str], *, is_negated: bool) -> Filter:
        field = FIELDS.get(named[1].lower())
        if field is None:
            raise self._error(
                f"there is no field {named[1]!r}{_suggest(named[1])} Put a word that has a colon in quotes"
            )
        operator = ":" if named[2] == "=" else named[2]
        if operator != ":" and not field.is_ordered:
            raise self._error(f"{field.name} has no order: write {field.name}:…", at=named.start(2))
        self._at = named.end()
        values = [self._read_value(field, operator)]
        while self._text[self._at : self._at + 1] == ",":
            if operator != ":":
                raise self._error(f"{operator} takes one value; alternatives stand after a colon")
            self._at += 1
            values.append(self._read_value(field, operator))
        return Filter(field=field.name, operator=operator, values=tuple(values), is_negated=is_negated)

    def _read_value(self, field: Field, operator: str) -> str:
        start = self._at
        value = self._read_text(_BARE_VALUE, missing=f"{field.name}{operator} wants {field.wants}")
        if fault := field.find_fault(value, is_compared=operator != ":"):
            raise self._error(fault, at=start)
        return value

    def _read_text(self, bare: re.Pattern[str], *, missing: str = "a word must follow the minus") -> str:
        start = self._at
        if self._text[start : start + 1] == '"':
            quoted = _QUOTED.match(self._text, start)
            if quoted is None:
                raise self._error('this quote is never closed; a quote inside a text is written \\"')
            self._at = quoted.end()
            text = _ESCAPE.sub(r"\1", quoted[1])
            if not text.strip():
                raise self._error("nothing stands between these quotes", at=start)
            return text
        found = bare.match(self._text, start)
        if found is None:
            raise self._error(missing)
        self._at = found.end()
        return found[0]
