"""The form that launches a run, made from the recipe's and the selection's own settings.

It parses text and places errors; what a value means and whether it is right, the models of `apps.training` say.
"""

import secrets
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from apps.console.run_form_words import BASIC, CHOICES, HINTS, LABELS, SELECTED, UNITS
from apps.console.settings_of import bounds_of, kinds_of
from apps.training.choices import LOSSES, OWN_SETTINGS, OWNED, default_settings
from apps.training.models import Run
from apps.training.recipes import RecipeConfig
from apps.training.resources import ADAPTER, LORA_RANKS
from apps.training.selection import Selection

RECIPE, SELECTION = "recipe", "selection"
SIZE = ("recipe.n_steps", "recipe.trajectories_per_step")
COLUMN_LETTERS = 28
MODELS: dict[str, type[BaseModel]] = {RECIPE: RecipeConfig, SELECTION: Selection}


@dataclass(frozen=True, kw_only=True)
class FormError:
    """`field` is the full name ("recipe.n_steps"), "" for the form as a whole."""

    field: str
    message: str


@dataclass(frozen=True, kw_only=True)
class FormField:
    """One setting as the page shows it. `value` and `default` are texts.

    Of a setting that a choice brings with it an empty value means its default; `is_choice`: it brings such settings.
    """

    name: str
    label: str
    unit: str
    hint: str
    kind: str
    choices: tuple[tuple[str, str], ...]
    value: str
    default: str
    error: str
    min: float | None
    max: float | None
    is_owned: bool = False
    is_choice: bool = False

    @property
    def is_changed(self) -> bool:
        return self.value not in {self.default, ""}

    @property
    def is_wide(self) -> bool:
        """Say whether its longest choice is cut off in a column of the form."""
        return any(len(words) > COLUMN_LETTERS for _, words in self.choices)

    @property
    def default_shown(self) -> str:
        return dict(self.choices).get(self.default) or self.default or "none"

    @property
    def shown(self) -> str:
        return dict(self.choices).get(self.value) or self.value or self.default or "–"


@dataclass(kw_only=True)
class RunForm:
    """What was typed, as text, and what is wrong with it."""

    typed: dict[str, str]
    name: str = ""
    idempotency_key: str = field(default_factory=lambda: secrets.token_hex(16))
    errors: list[FormError] = field(default_factory=list)
    agents: tuple[tuple[str, str], ...] = ()
    snapshots: tuple[tuple[str, str], ...] = ()
    taken_size: str = ""

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> "RunForm":
        """Read what a browser sent; settings that it did not send have their defaults."""
        typed = {name: str(data.get(name, default)).strip() for name, default in _defaults().items()}
        form = cls(typed=typed, name=str(data.get("name", "")).strip())
        form.idempotency_key = str(data.get("idempotency_key", "")) or form.idempotency_key
        form.check()
        return form

    @classmethod
    def of_choices(cls, data: Mapping[str, Any]) -> "RunForm":
        """Read what a browser sent while choosing: settings that a new choice would ignore are forgotten."""
        form = cls(typed={name: str(data.get(name, default)).strip() for name, default in _defaults().items()})
        known = form.own_defaults.keys()
        kept = {name: data[name] for name in data if not _is_owned(name) or name.partition(".")[2] in known}
        return cls.of_data(kept)

    @classmethod
    def of_run(cls, run: Run) -> "RunForm":
        """Start from a run's settings."""
        given = {f"{RECIPE}.{name}": value for name, value in run.recipe.items()}
        given |= {f"{SELECTION}.{name}": value for name, value in run.selection.items()}
        return cls(
            typed={name: _text(given.get(name, default)) for name, default in _defaults().items()}, name=run.name
        )

    def take_size(self, recipe: RecipeConfig) -> None:
        """Take over the size of a run, which nobody has typed."""
        self.typed |= {name: _text(getattr(recipe, name.removeprefix(f"{RECIPE}."))) for name in SIZE}
        self.taken_size = self.size

    @property
    def size(self) -> str:
        """Steps and batch in one word."""
        return "x".join(self.typed[name] for name in SIZE)

    @property
    def address(self) -> str:
        """The query by which the form opens as it stands: its size, and what else is not as usual."""
        return urlencode({**self.unsized, **{name: self.typed[name] for name in SIZE}})

    @property
    def unsized_address(self) -> str:
        """The same without a size: the form then opens with the one that fits what is ready."""
        return urlencode(self.unsized)

    def address_by(self, algorithm: str) -> str:
        """The same with another algorithm: settings that come with the one of now are forgotten."""
        kept = {name: value for name, value in self.unsized.items() if not _is_owned(name)}
        return urlencode({**kept, "recipe.algorithm": algorithm})

    @property
    def unsized(self) -> dict[str, str]:
        """What was chosen otherwise than usual, but for the size."""
        usual = {one.name: {one.default, ""} if one.is_owned else {one.default} for one in self.fields}
        chosen = {name: self.typed[name] for name in usual if self.typed[name] not in usual[name] and name not in SIZE}
        return ({"name": self.name} if self.name else {}) | chosen

    def check(self) -> None:
        """Let the models judge the settings and keep what they say."""
        for part, model in MODELS.items():
            try:
                model.model_validate(self._values(part))
            except ValidationError as error:
                for problem in error.errors():
                    self.add_error(".".join([part, *map(str, problem["loc"][:1])]), _words(problem))

    def add_error(self, name: str, message: str) -> None:
        """Place an error at a setting, or over the form when no setting has this name."""
        is_known = name in self.typed
        self.errors.append(FormError(field=name if is_known else "", message=message))

    @property
    def recipe(self) -> dict[str, Any]:
        return self._values(RECIPE)

    @property
    def selection(self) -> dict[str, Any]:
        return self._values(SELECTION)

    def _values(self, part: str) -> dict[str, Any]:
        """The settings that differ from their defaults."""
        values = {}
        for name, info in MODELS[part].model_fields.items():
            typed = self.typed[f"{part}.{name}"]
            if typed not in {_default(info), self._default(f"{part}.{name}", info)}:
                values[name] = _parse(typed, info)
        return values

    @property
    def own_defaults(self) -> dict[str, Any]:
        """The settings that mean something with the choices made, with their defaults."""
        return default_settings({axis: self.typed[f"{RECIPE}.{axis}"] for axis in OWN_SETTINGS})

    def _default(self, full: str, info: FieldInfo) -> str:
        return _text(self.own_defaults.get(full.partition(".")[2])) if _is_owned(full) else _default(info)

    @cached_property
    def fields(self) -> list[FormField]:
        """All settings, in the models' order."""
        own = self.own_defaults
        return [
            self._field(part, name, info)
            for part in MODELS
            for name, info in MODELS[part].model_fields.items()
            if not _is_owned(f"{part}.{name}") or name in own
        ]

    @property
    def basic(self) -> list[FormField]:
        return [one for one in self.fields if one.name in BASIC]

    @property
    def selected(self) -> list[FormField]:
        return [one for one in self.fields if one.name in SELECTED]

    @property
    def advanced(self) -> list[FormField]:
        return [one for one in self.fields if one.name not in BASIC and one.name not in SELECTED]

    @property
    def has_advanced_error(self) -> bool:
        return any(one.error for one in self.advanced)

    def _choices(self, full: str, info: FieldInfo) -> tuple[tuple[str, str], ...]:
        if full == "selection.agent":
            return (("", "all"), *_with_given(self.agents, self.typed[full]))
        if full == "selection.snapshot":
            return (("", "none: the whole pool"), *_with_given(self.snapshots, self.typed[full]))
        if full == "recipe.lora_rank":
            ranks = tuple((str(rank), str(rank)) for rank in LORA_RANKS if rank <= settings.CLAW.max_lora_rank)
            return (("", f"the usual {ADAPTER['lora_rank']}"), *ranks)
        choices = CHOICES.get(full) or _choices(info)
        if full == "recipe.loss":
            fitting = LOSSES.get(self.typed["recipe.algorithm"], ())
            choices = tuple((value, words) for value, words in choices if value in fitting)
        if _is_owned(full):
            default = self._default(full, info)
            return tuple(("" if value == default else value, words) for value, words in choices)
        return choices

    def _field(self, part: str, name: str, info: FieldInfo) -> FormField:
        full = f"{part}.{name}"
        low, high = bounds_of(info)
        choices, default = self._choices(full, info), self._default(full, info)
        value = self.typed[full]
        return FormField(
            name=full,
            label=LABELS.get(full, name.replace("_", " ").capitalize()),
            unit=UNITS.get(full, ""),
            hint=HINTS.get(full) or info.description or "",
            kind=_kind(info),
            choices=choices,
            value="" if _is_owned(full) and value == default else value,
            default=default,
            error="; ".join(error.message for error in self.errors if error.field == full),
            min=low,
            max=high,
            is_owned=_is_owned(full),
            is_choice=full.partition(".")[2] in OWN_SETTINGS,
        )


def _with_given(choices: tuple[tuple[str, str], ...], given: str) -> tuple[tuple[str, str], ...]:
    """Return the choices with the one that was given, be it none of theirs: an old one, or one that is refused."""
    return choices if given in {"", *dict(choices)} else ((given, given), *choices)


def _is_owned(full: str) -> bool:
    """Say whether the setting comes with a choice."""
    part, _, name = full.partition(".")
    return part == RECIPE and name in OWNED


def _defaults() -> dict[str, str]:
    return {
        f"{part}.{name}": _default(info) for part, model in MODELS.items() for name, info in model.model_fields.items()
    }


def _default(info: FieldInfo) -> str:
    value = info.get_default(call_default_factory=True)
    return "" if value is PydanticUndefined else _text(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _kind(info: FieldInfo) -> str:
    kinds = kinds_of(info)
    if kinds & {int, float}:
        return "number"
    return "text"


def _parse(text: str, info: FieldInfo) -> Any:
    """Return a number where the setting is one and the text can be read as one; the models refuse the rest in words."""
    kinds = kinds_of(info)
    if text == "":
        return None if type(None) in kinds else text
    if bool in kinds and text in {"true", "false"}:
        return text == "true"
    for kind in (int, float):
        if kinds & {int, float}:
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def _choices(info: FieldInfo) -> tuple[tuple[str, str], ...]:
    for kind in kinds_of(info):
        if typing.get_origin(kind) is typing.Literal:
            return tuple((_text(value), str(value).replace("_", " ")) for value in typing.get_args(kind))
        if isinstance(kind, type) and issubclass(kind, Enum):
            return tuple((str(one.value), str(getattr(one, "label", one.value)).lower()) for one in kind)
        if kind is bool:
            return (("true", "yes"), ("false", "no"))
    return ()


def _words(problem: Mapping[str, Any]) -> str:
    return str(problem["msg"]).removeprefix("Value error, ")
