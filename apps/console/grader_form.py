"""The form of a grader's version, made from its kind's own settings.

It parses text and places errors; what a value means and whether it is right, `apps.feedback.graders` says.
"""

import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from apps.console.grader_form_words import HINTS, JUDGES, LABELS, UNITS, WORDS
from apps.console.settings_of import bounds_of, kinds_of
from apps.core.errors import ServiceError
from apps.feedback.graders.judging import AskingSettings
from apps.feedback.graders.kinds import Kind
from apps.feedback.graders.models import GraderVersion
from apps.feedback.graders.services import VersionDraft
from apps.feedback.score_schema import REWARD_FIELD

SETTINGS = "settings"
AREAS = {"template", "question", "pattern", "json_schema", "options", "error_pattern", "expected"}


@dataclass(frozen=True, kw_only=True)
class GraderField:
    """One setting as the page shows it. `value` is text; of a box "on" or ""."""

    name: str
    label: str
    kind: str
    value: str
    unit: str = ""
    hint: str = ""
    error: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    min: float | None = None
    max: float | None = None

    @property
    def shown(self) -> str:
        """The value as one reads it, "" where there is none."""
        if self.kind == "checkbox":
            return "yes" if self.value else "no"
        return dict(self.choices).get(self.value, self.value)


@dataclass(kw_only=True)
class GraderForm:
    """What was typed for a version of a kind, as text, and what is wrong with it. `name` is a new grader's."""

    kind: Kind
    typed: dict[str, str]
    errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_kind(cls, kind: Kind) -> "GraderForm":
        """Start from the kind's defaults."""
        known: dict[str, Any] = {}  # a default may depend on those before it
        for name, info in kind.settings.model_fields.items():
            known[name] = info.get_default(call_default_factory=True, validated_data=known)
        settings = {f"{SETTINGS}.{name}": _text(value) for name, value in known.items()}
        return cls(kind=kind, typed={"name": "", "field": REWARD_FIELD, "query": "", "sample": "1", **settings})

    @classmethod
    def of_version(cls, kind: Kind, version: GraderVersion) -> "GraderForm":
        """Start from a version's settings."""
        form = cls.of_kind(kind)
        form.typed |= {f"{SETTINGS}.{name}": _text(value) for name, value in version.settings.items()}
        form.typed |= {"field": version.field, "query": version.query, "sample": _text(version.sample)}
        return form

    @classmethod
    def of_data(cls, kind: Kind, data: Mapping[str, Any]) -> "GraderForm":
        """Read what a browser sent; a box that it did not send is off."""
        form = cls.of_kind(kind)
        # Browsers end lines with two characters; answers that are compared with what was typed do not.
        form.typed |= {name: str(data.get(name, "")).replace("\r\n", "\n").strip() for name in form.typed}
        return form

    def read_draft(self) -> VersionDraft:
        """Return what was typed as a version's draft. What is no number or JSON is told at its box, and stays text."""
        settings: dict[str, Any] = {}
        for name, info in self.kind.settings.model_fields.items():
            full = f"{SETTINGS}.{name}"
            try:
                value = _parse(self.typed[full], info)
            except ValueError as error:
                self.errors[full], value = str(error), self.typed[full]
            if value is not PydanticUndefined:
                settings[name] = value
        try:
            sample = float(self.typed["sample"] or "1")
        except ValueError:
            self.errors["sample"], sample = "a number is needed", 1.0
        return VersionDraft(settings=settings, field=self.typed["field"], query=self.typed["query"], sample=sample)

    def place(self, error: ServiceError) -> None:
        """Show a service's error at its field, or over the form; the first one at each."""
        name = {"q": "query", "model": f"{SETTINGS}.model", "plugin": f"{SETTINGS}.plugin"}.get(
            error.field, error.field
        )
        known = next((one for one in self.typed if name == one or name.startswith(f"{one}.")), "")
        self.errors.setdefault(known, error.message.removeprefix(f"{error.field}: "))

    @property
    def general_error(self) -> str:
        return self.errors.get("", "")

    @property
    def settings(self) -> list[GraderField]:
        return [self._field(name, info) for name, info in self.kind.settings.model_fields.items()]

    def own(self, name: str) -> GraderField:
        """Return a field that every kind has: name, field, query, sample."""
        return GraderField(name=name, label=name, kind="text", value=self.typed[name], error=self.errors.get(name, ""))

    @property
    def name(self) -> GraderField:
        return self.own("name")

    @property
    def query(self) -> GraderField:
        return self.own("query")

    @property
    def sample(self) -> GraderField:
        return self.own("sample")

    @property
    def answered(self) -> GraderField:
        return self.own("field")

    def _hint(self, name: str) -> str:
        settings = self.kind.settings
        if issubclass(settings, AskingSettings) and name == "template":
            return f"Places: {', '.join(f'{{{{{place}}}}}' for place in settings.PLACES)}."
        if issubclass(settings, AskingSettings) and name == "model":
            return JUDGES
        return HINTS.get(name, "")

    def _field(self, name: str, info: FieldInfo) -> GraderField:
        full = f"{SETTINGS}.{name}"
        low, high = bounds_of(info)
        return GraderField(
            name=full,
            label=name_setting(name),
            kind=_kind(name, info),
            value=self.typed[full],
            unit=UNITS.get(name, ""),
            hint=self._hint(name),
            error=self.errors.get(full, ""),
            choices=tuple((value, WORDS.get(value, value)) for value in _literals(info)),
            min=low,
            max=high,
        )


def name_setting(name: str) -> str:
    """A setting's name as people read it: `n_votes` as Votes."""
    return LABELS.get(name) or name.replace("_", " ").capitalize()


def _kinds(info: FieldInfo) -> set[Any]:
    return {typing.get_origin(kind) or kind for kind in kinds_of(info)}


def _literals(info: FieldInfo) -> tuple[str, ...]:
    is_literal = typing.get_origin(info.annotation) is typing.Literal
    return tuple(map(str, typing.get_args(info.annotation))) if is_literal else ()


def _kind(name: str, info: FieldInfo) -> str:
    kinds = _kinds(info)
    if _literals(info):
        return "select"
    if bool in kinds:
        return "checkbox"
    if kinds & {int, float}:
        return "number"
    return "area" if name in AREAS else "text"


def _text(value: Any) -> str:
    if value is None or value is PydanticUndefined:
        return ""
    if isinstance(value, bool):
        return "on" if value else ""
    if isinstance(value, (dict, list)):
        return json.dumps(value, indent=2) if value else ""
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _parse(text: str, info: FieldInfo) -> Any:
    """Return the value that was typed, PydanticUndefined where the default is meant. Raises ValueError in words."""
    kinds = _kinds(info)
    if bool in kinds:
        return text == "on"
    if text == "":
        return "" if str in kinds else PydanticUndefined
    if dict in kinds:
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"this is no JSON: look at line {error.lineno}, character {error.colno}") from error
        except (ValueError, RecursionError) as error:
            words = "this JSON cannot be read: it is nested too deeply, or a number in it is too long"
            raise ValueError(words) from error
    for number in (int, float):
        if number in kinds:
            try:
                return number(text.replace("−", "-"))
            except ValueError:
                if number is float or float not in kinds:
                    raise ValueError("a number is needed" if number is float else "a whole number is needed") from None
    return text
