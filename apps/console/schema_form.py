"""The form of a score schema: a row a field, a line a tier of trust. It parses text; `score_schema` judges.

What the form has no place for (help, titles of choices, the built-in texts) stays as it was before.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from apps.console.review_form import Box, read_boxes
from apps.core.errors import InvalidInput, ServiceError
from apps.feedback.score_schema import BUILT_IN, REWARD_FIELD, FieldKind, FieldSpec, Schema, find_faults

BLANK_ROWS = 1
MAX_ROWS = 60
TRUST = "trust"
NOTE = "note"
_NUMBERS = ("weight", "low", "high", "low_reward", "high_reward")
_COLUMNS = ("name", "kind", "title", *_NUMBERS, "choices", "many")
_FREE = ("title", "weight")  # of what is built in: the rest is sent along unseen
_VALUED = tuple(kind for kind in FieldKind if kind != FieldKind.TEXT)
_ENDED = tuple(kind for kind in _VALUED if kind != FieldKind.CHOICE)


@dataclass(frozen=True, kw_only=True)
class Column:
    """How the form asks for one setting. `used_by` are the kinds that have use for it: the page hides the box of the
    others, so what stands in it is not meant."""

    label: str
    unit: str = ""
    hint: str = ""
    looks: str = "text"
    placeholder: str = ""
    used_by: tuple[FieldKind, ...] = tuple(FieldKind)


_ASKED: Mapping[str, Column] = {
    "name": Column(
        label="Name", unit="empty: no field", hint="Lower case letters, digits and _; a letter first.", looks="name"
    ),
    "kind": Column(label="Kind", looks="kind"),
    "title": Column(label="Question", unit="for people"),
    "weight": Column(label="Weight", unit="0: does not count", looks="number", used_by=_VALUED),
    "low": Column(label="From", looks="number", used_by=(FieldKind.SCALE, FieldKind.NUMBER)),
    "high": Column(label="To", looks="number", used_by=(FieldKind.SCALE, FieldKind.NUMBER)),
    "low_reward": Column(
        label="No, or the low end, is worth", unit="−1 to 1", looks="number", placeholder="-1", used_by=_ENDED
    ),
    "high_reward": Column(label="Yes, or the high end", looks="number", placeholder="1", used_by=_ENDED),
    "choices": Column(
        label="Choices",
        unit="a line each: name = worth",
        hint="Names have lower case letters, digits and _; without a worth a choice counts for nothing.",
        looks="area",
        placeholder="facts = 1",
        used_by=(FieldKind.CHOICE,),
    ),
    "many": Column(label="Texts stand side by side", looks="checkbox", used_by=(FieldKind.TEXT,)),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One setting of one field as the page shows it."""

    name: str  # as it is sent: 3.low
    value: str
    asked: Column
    error: str = ""

    @property
    def kinds(self) -> str:
        """The kinds that have use for it, "" where all have."""
        return "" if len(self.asked.used_by) == len(FieldKind) else " ".join(self.asked.used_by)


@dataclass(frozen=True, kw_only=True)
class SchemaRow:
    """One field as text; `cells` are its settings, of choices lines `name = reward`."""

    number: int
    cells: Mapping[str, str]

    @property
    def is_built_in(self) -> bool:
        return self.cells["name"] == REWARD_FIELD


@dataclass(kw_only=True)
class SchemaForm:
    """What was typed, and what is wrong with it by the name of its box ("": nowhere in particular)."""

    rows: list[SchemaRow]
    trust: str
    note: str = ""
    errors: dict[str, str] = field(default_factory=dict)
    kinds: tuple[str, ...] = tuple(kind.value for kind in FieldKind)

    @classmethod
    def of_schema(cls, schema: Schema) -> "SchemaForm":
        """Start from a schema, with a row for a field of one's own."""
        shown = [_cells(spec) for spec in schema.fields if spec.name == REWARD_FIELD or spec.name not in BUILT_IN]
        lines = [", ".join(f"{source} {weight:.15g}" for source, weight in tier.items()) for tier in schema.trust]
        rows = [SchemaRow(number=number, cells=cells) for number, cells in enumerate(shown)]
        form = cls(rows=rows, trust="\n".join(lines))
        for _ in range(BLANK_ROWS):
            form.add_row()
        return form

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> "SchemaForm":
        """Read what a browser sent."""
        numbers = [number for number in range(MAX_ROWS) if f"{number}.name" in data]
        rows = [
            SchemaRow(number=number, cells={name: str(data.get(f"{number}.{name}", "")).strip() for name in _COLUMNS})
            for number in numbers
        ]
        return cls(rows=rows, trust=str(data.get(TRUST, "")), note=str(data.get(NOTE, "")).strip())

    @staticmethod
    def is_whole(data: Mapping[str, Any]) -> bool:
        """Say whether what came is a form's: the tiers, below all fields, are always sent."""
        return TRUST in data

    @property
    def next_row(self) -> int | None:
        """The number of a further row, None when there are as many as a form may have."""
        number = max((row.number for row in self.rows), default=-1) + 1
        return number if number < MAX_ROWS else None

    def add_row(self) -> None:
        """Add a row for a field of one's own, if there is room."""
        if (number := self.next_row) is not None:
            self.rows.append(SchemaRow(number=number, cells=dict.fromkeys(_COLUMNS, "") | {"weight": "1"}))

    @property
    def shown(self) -> list[tuple[SchemaRow, list[Cell]]]:
        """The rows with the boxes that the page shows of each."""
        return [(row, self._show(row)) for row in self.rows]

    def _show(self, row: SchemaRow) -> list[Cell]:
        names = _FREE if row.is_built_in else _COLUMNS
        sent = {name: f"{row.number}.{name}" for name in names}
        return [
            Cell(name=sent[name], value=row.cells[name], asked=_ASKED[name], error=self.errors.get(sent[name], ""))
            for name in names
        ]

    @property
    def general_error(self) -> str:
        return self.errors.get("", "")

    @property
    def trust_error(self) -> str:
        return self.errors.get(TRUST, "")

    @property
    def note_error(self) -> str:
        return self.errors.get(NOTE, "")

    def read_definition(self, before: Schema) -> dict[str, Any] | None:
        """Return the definition that was typed, over the one in force; a row without a name is no field. None, with all
        that is wrong at its boxes, when it is none."""
        definition, self.errors = self._read(before)
        return None if self.errors else definition

    def place(self, error: ServiceError) -> None:
        """Show at its box what the services found."""
        self.errors |= [self._find_box(error)]

    def preview(self, before: Schema) -> list[Box]:
        """Return the boxes that a reviewer would see, of those fields that are whole so far."""
        definition, errors = self._read(before)
        faulty = {name.split(".")[0] for name in errors}
        named = [str(row.number) for row in self._named_rows()]
        whole = [data for number, data in zip_longest(named, definition["fields"]) if number not in faulty]
        specs = [FieldSpec.model_validate(data) for data in whole]
        return read_boxes([spec for spec in specs if spec.kind != FieldKind.RANKING], {})

    def _named_rows(self) -> list[SchemaRow]:
        return [row for row in self.rows if row.cells["name"]]

    def _read(self, before: Schema) -> tuple[dict[str, Any], dict[str, str]]:
        """Return what was typed as a definition, and by box what is wrong with it."""
        errors: dict[str, str] = {}
        known = {spec.name: spec for spec in before.fields}
        fields = [_read_row(row, known.get(row.cells["name"]), errors) for row in self._named_rows()]
        typed = {REWARD_FIELD, *(spec["name"] for spec in fields)}
        unshown = [
            spec.model_dump(mode="json") for name, spec in known.items() if name in BUILT_IN and name not in typed
        ]
        definition = {"fields": [*fields, *unshown], "trust": _read_trust(self.trust, errors)}
        for fault in find_faults(definition):
            box, words = self._find_box(fault)
            errors.setdefault(box, words)  # what could not be parsed is missing, which is no news
        return definition, errors

    def _find_box(self, error: ServiceError) -> tuple[str, str]:
        """Return where a fault is shown and how it is told: `fields.1.low` is a box of the second row with a name."""
        place, _, rest = error.field.partition(".")
        words = error.message.removeprefix(f"{error.field}: ").removeprefix(f"{place}: ")
        number, _, name = rest.partition(".")
        rows = self._named_rows()
        if place == "fields" and number.isdecimal() and int(number) < len(rows):
            row = rows[int(number)]
            name, _, line = name.partition(".")
            if name == "choices" and line:
                words = f"line {int(line.split('.')[0]) + 1}: {words}"
            words = words.removeprefix(f"{row.cells['name']}: ")
            shown = {cell.name for cell in self._show(row)}
            box = f"{row.number}.{name}"
            return (box if box in shown else f"{row.number}.title"), words
        return (place if place in {TRUST, NOTE} else ""), words


def _cells(spec: FieldSpec) -> dict[str, str]:
    numbers = {name: getattr(spec, name) for name in _NUMBERS}
    choices = [
        choice.name if choice.reward is None else f"{choice.name} = {choice.reward:.15g}" for choice in spec.choices
    ]
    return {
        "name": spec.name,
        "kind": spec.kind.value,
        "title": spec.title,
        **{name: "" if value is None else f"{value:.15g}" for name, value in numbers.items()},
        "choices": "\n".join(choices),
        "many": "on" if spec.many else "",
    }


def _read_row(row: SchemaRow, before: FieldSpec | None, errors: dict[str, str]) -> dict[str, Any]:
    cells = {name: text if _has_use(row.cells["kind"], name) else "" for name, text in row.cells.items()}
    spec: dict[str, Any] = {"name": cells["name"], "kind": cells["kind"], "title": cells["title"]}
    if before is not None:
        spec["help"] = before.help
    titles = {choice.name: choice.title for choice in before.choices} if before is not None else {}
    for name in _NUMBERS:
        if cells[name]:
            with _noting(errors, at=f"{row.number}.{name}"):
                spec[name] = _read_number(cells[name])
    lines = [line for line in cells["choices"].splitlines() if line.strip()]
    with _noting(errors, at=f"{row.number}.choices"):
        if lines:
            spec["choices"] = [_read_choice(line, titles) for line in lines]
    if cells["many"]:
        spec["many"] = True
    return spec


@contextmanager
def _noting(errors: dict[str, str], *, at: str) -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        errors.setdefault(at, error.message)


def _has_use(kind: str, name: str) -> bool:
    # A kind that there is not is refused by its own name, and a text keeps the weight that it was given elsewhere.
    if name == "weight" or kind not in set(FieldKind):
        return True
    return kind in _ASKED[name].used_by


def _read_choice(line: str, titles: Mapping[str, str]) -> dict[str, Any]:
    name, has_reward, reward = line.partition("=")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name.strip()):
        raise InvalidInput(
            f"{line.strip()[:40]!r} is written as name = worth, say facts = 1; a name has lower case letters, digits "
            "and _, a letter first"
        )
    choice: dict[str, Any] = {"name": name.strip(), "title": titles.get(name.strip(), "")}
    return {**choice, "reward": _read_number(reward)} if has_reward else choice


def _read_trust(text: str, errors: dict[str, str]) -> list[dict[str, float]]:
    tiers = []
    for line in text.splitlines():
        if line.strip():
            tier = {}
            for part in line.split(","):
                source, _, weight = part.strip().partition(" ")
                with _noting(errors, at=TRUST):
                    tier[source] = _read_number(weight or "1")
            tiers.append(tier)
    return tiers


def _read_number(text: str) -> float:
    try:
        return float(text.strip().replace("−", "-").replace(",", "."))
    except ValueError:
        raise InvalidInput(f"{text.strip()[:40]!r} is no number") from None
