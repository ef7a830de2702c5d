"""The form of a score schema: a row a field, a line a tier of trust. It parses text; `score_schema` judges.

What the form has no place for (help, titles of choices, the built-in texts) stays as it was before.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apps.core.errors import InvalidInput, ServiceError
from apps.feedback.score_schema import BUILT_IN, REWARD_FIELD, FieldKind, FieldSpec, Schema

BLANK_ROWS = 2
MAX_ROWS = 60
_NUMBERS = ("weight", "low", "high", "low_reward", "high_reward")
_COLUMNS = ("name", "kind", "title", *_NUMBERS, "choices", "many")
# The boxes that some kinds have no use for, and the kinds that have one. The page hides the others, so what stands in
# those is not meant.
_VALUED = tuple(kind for kind in FieldKind if kind != FieldKind.TEXT)
_ENDED = tuple(kind for kind in _VALUED if kind != FieldKind.CHOICE)
_USED_BY: Mapping[str, tuple[FieldKind, ...]] = {
    "weight": _VALUED,
    "low": (FieldKind.SCALE, FieldKind.NUMBER),
    "high": (FieldKind.SCALE, FieldKind.NUMBER),
    "low_reward": _ENDED,
    "high_reward": _ENDED,
    "choices": (FieldKind.CHOICE,),
    "many": (FieldKind.TEXT,),
}


@dataclass(frozen=True, kw_only=True)
class SchemaRow:
    """One field as text; `choices` are lines `name = reward`."""

    number: int
    cells: Mapping[str, str]

    @property
    def is_built_in(self) -> bool:
        return self.cells["name"] == REWARD_FIELD


@dataclass(kw_only=True)
class SchemaForm:
    """What was typed and what is wrong with it."""

    rows: list[SchemaRow]
    trust: str
    note: str = ""
    error: str = ""
    kinds: tuple[str, ...] = tuple(kind.value for kind in FieldKind)

    @property
    def used_by(self) -> dict[str, str]:
        """The kinds that have use for a box, by the box's name, with blanks between."""
        return {box: " ".join(kinds) for box, kinds in _USED_BY.items()}

    @classmethod
    def of_schema(cls, schema: Schema) -> "SchemaForm":
        """Start from a schema, with rows for fields of one's own."""
        shown = [_cells(spec) for spec in schema.fields if spec.name == REWARD_FIELD or spec.name not in BUILT_IN]
        blank = [dict.fromkeys(_COLUMNS, "") | {"weight": "1"} for _ in range(BLANK_ROWS)]
        lines = [", ".join(f"{source} {weight:.15g}" for source, weight in tier.items()) for tier in schema.trust]
        return cls(
            rows=[SchemaRow(number=number, cells=cells) for number, cells in enumerate([*shown, *blank])],
            trust="\n".join(lines),
        )

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> "SchemaForm":
        """Read what a browser sent."""
        numbers = [number for number in range(MAX_ROWS) if f"{number}.name" in data]
        rows = [
            SchemaRow(number=number, cells={name: str(data.get(f"{number}.{name}", "")).strip() for name in _COLUMNS})
            for number in numbers
        ]
        return cls(rows=rows, trust=str(data.get("trust", "")), note=str(data.get("note", "")).strip())

    def place(self, error: ServiceError) -> None:
        """Say what is wrong in the page's own words: `fields.1.low` as the second field's name and its box."""
        self.error = error.message.removeprefix(f"{error.field}: ")
        found = re.fullmatch(r"fields\.(\d+)\.(.+)", error.field)
        names = [row.cells["name"] for row in self.rows if row.cells["name"]]
        if found and int(found[1]) < len(names):
            box = found[2].replace("_", " ").replace(".", " ")
            self.error = f"{names[int(found[1])]}, {box}: {self.error}"

    def read_definition(self, before: Schema) -> dict[str, Any]:
        """Return the definition that was typed, over the one in force; a row without a name is no field. Raises
        InvalidInput in words."""
        known = {spec.name: spec for spec in before.fields}
        fields = [_read_row(row.cells, known.get(row.cells["name"])) for row in self.rows if row.cells["name"]]
        typed = {REWARD_FIELD, *(spec["name"] for spec in fields)}
        unshown = [spec for name, spec in known.items() if name in BUILT_IN and name not in typed]
        return {
            "fields": [*fields, *(spec.model_dump(mode="json") for spec in unshown)],
            "trust": _read_trust(self.trust),
        }


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


def _read_row(typed: Mapping[str, str], before: FieldSpec | None) -> dict[str, Any]:
    cells = {name: text if _has_use(typed["kind"], name) else "" for name, text in typed.items()}
    spec: dict[str, Any] = {"name": cells["name"], "kind": cells["kind"], "title": cells["title"]}
    if before is not None:
        spec["help"] = before.help
    titles = {choice.name: choice.title for choice in before.choices} if before is not None else {}
    for name in _NUMBERS:
        if cells[name]:
            spec[name] = _read_number(cells[name], of=f"{cells['name']}, {name.replace('_', ' ')}")
    if cells["choices"]:
        lines = [line for line in cells["choices"].splitlines() if line.strip()]
        spec["choices"] = [_read_choice(line, titles, of=cells["name"]) for line in lines]
    if cells["many"]:
        spec["many"] = True
    return spec


def _has_use(kind: str, box: str) -> bool:
    # A kind that there is not is refused by its own name, and a text keeps the weight that it was given elsewhere.
    if box == "weight" or box not in _USED_BY or kind not in set(FieldKind):
        return True
    return kind in _USED_BY[box]


def _read_choice(line: str, titles: Mapping[str, str], *, of: str) -> dict[str, Any]:
    name, has_reward, reward = line.partition("=")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name.strip()):
        raise InvalidInput(
            f"{of}: the choice {line.strip()[:40]!r} is written as name = worth, say facts = 1; a name has lower case "
            "letters, digits and _, a letter first",
            field="fields",
        )
    choice: dict[str, Any] = {"name": name.strip(), "title": titles.get(name.strip(), "")}
    return {**choice, "reward": _read_number(reward, of=f"choice {name.strip()}")} if has_reward else choice


def _read_trust(text: str) -> list[dict[str, float]]:
    tiers = []
    for line in text.splitlines():
        if line.strip():
            tier = {}
            for part in line.split(","):
                source, _, weight = part.strip().partition(" ")
                tier[source] = _read_number(weight or "1", of=f"trust, {source}")
            tiers.append(tier)
    return tiers


def _read_number(text: str, *, of: str) -> float:
    try:
        return float(text.strip().replace("−", "-").replace(",", "."))
    except ValueError:
        raise InvalidInput(f"{of}: {text.strip()[:40]!r} is no number", field="fields") from None
