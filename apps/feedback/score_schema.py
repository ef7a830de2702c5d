"""What people and graders may say of a trajectory or a step, and what each answer is worth: the fields of a project's
score schema, and whose word counts. Pure; knows no tables.

An answer is kept as it was said (4 of 5, "helpful", third of four); what it is worth from -1 to 1 follows from its
field, so that a better mapping in a later version of the schema is worth something for what was said before.
docs/rewards.md explains it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from apps.core.errors import InvalidInput, first_of
from apps.core.fault_words import tell_fault
from apps.core.texts import find_fault

REWARD_FIELD = "reward"  # what a thumb and an agent's own label speak of
COMMENT_FIELD = "comment"  # words to people
HINT_FIELD = "hint"  # words to the model: what it should have known; for distillation
MAX_FIELDS = 40
MAX_CHOICES = 50
MAX_TEXT = 20_000
SOURCES = ("human", "end_user", "environment", "judge", "next_state", "rule")
GRADERS = frozenset({"judge", "next_state", "rule"})  # they guess what the others know

Reward = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Number = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]
NAME = r"^[a-z][a-z0-9_]{0,59}$"
NAME_WORDS = "a name has lower case letters, digits and _, a letter first, 60 characters at most"
Name = Annotated[str, Field(pattern=NAME)]
Title = Annotated[str, Field(max_length=200)]


class FieldKind(StrEnum):
    BINARY = "binary"
    SCALE = "scale"
    NUMBER = "number"
    CHOICE = "choice"
    TEXT = "text"
    RANKING = "ranking"


def make_fault(words: str, *, at: str) -> PydanticCustomError:
    """Return the fault of one setting that is checked together with others: `at` is its place among them."""
    return PydanticCustomError("fault", "{words}", {"words": words, "at": at})


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Choice(_Strict):
    """One answer to choose. Without a reward it is kept and counts for nothing."""

    name: Name
    title: Title = ""
    reward: Reward | None = None


class FieldSpec(_Strict):
    """One question. `low_reward` and `high_reward` are what its two ends are worth: no and yes, `low` and `high`, the
    last and the first place; what lies between is worth what lies between."""

    name: Name
    kind: FieldKind
    title: Title = ""
    help: Annotated[str, Field(max_length=2000)] = ""
    weight: Weight = 1
    low: Number | None = None
    high: Number | None = None
    low_reward: Reward = -1
    high_reward: Reward = 1
    choices: Annotated[tuple[Choice, ...], Field(max_length=MAX_CHOICES)] = ()
    many: bool = False  # of one author on one target: comments stand side by side

    @model_validator(mode="after")
    def check_kind(self) -> Self:
        """Refuse settings that the kind has no use for, and ranges in which nothing lies."""
        has_range = self.kind in {FieldKind.SCALE, FieldKind.NUMBER}
        if has_range and (self.low is None or self.high is None or self.low >= self.high):
            at = "high" if self.low is not None else "low"
            raise make_fault(f"{self.name}: a {self.kind} needs low and high, and low lies below high", at=at)
        if not has_range and (self.low is not None or self.high is not None):
            raise make_fault(f"{self.name}: low and high are for scales and numbers", at="low")
        if self.kind == FieldKind.SCALE:
            self._check_scale()
        if (self.kind == FieldKind.CHOICE) != bool(self.choices):
            raise make_fault(f"{self.name}: choices are for a choice, which needs at least one", at="choices")
        if len({choice.name for choice in self.choices}) != len(self.choices):
            raise make_fault(f"{self.name}: two choices have one name", at="choices")
        if self.many and self.kind != FieldKind.TEXT:
            raise make_fault(f"{self.name}: many is for texts", at="many")
        return self

    def _check_scale(self) -> None:
        low, high = self.low or 0, self.high or 0
        if low != int(low) or high != int(high) or high - low > 99:
            raise make_fault(f"{self.name}: a scale has whole steps, 100 at most; for others use a number", at="high")

    @property
    def words(self) -> str:
        """The question for people."""
        return self.title or self.name.replace("_", " ")

    @property
    def is_plain(self) -> bool:
        """What is said is its own worth, so that it need not be kept twice."""
        return self.kind == FieldKind.NUMBER and (self.low, self.high, self.low_reward, self.high_reward) == (
            -1,
            1,
            -1,
            1,
        )

    def read(self, value: Any) -> Any:
        """Return the answer in the shape in which it is kept. Raises InvalidInput that says what the field takes."""
        match self.kind:
            case FieldKind.BINARY:
                return self._read_yes_or_no(value)
            case FieldKind.SCALE | FieldKind.NUMBER:
                return self._read_number(value)
            case FieldKind.CHOICE:
                if value not in [choice.name for choice in self.choices]:
                    raise self._wants(f"one of {', '.join(choice.name for choice in self.choices)}")
                return value
            case FieldKind.RANKING:
                return self._read_place(value)
            case FieldKind.TEXT:
                raise self._wants("a text and no value")

    def _read_yes_or_no(self, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if type(value) in {int, float} and value in {0, 1}:
            return bool(value)
        raise self._wants("true or false")

    def _read_number(self, value: Any) -> float:
        low, high = self.low or 0, self.high or 0
        if type(value) not in {int, float} or not low <= value <= high:  # NaN is not between them
            raise self._wants(f"a number from {low:g} to {high:g}")
        if self.kind == FieldKind.SCALE and value != int(value):
            raise self._wants(f"a whole number from {low:g} to {high:g}")
        return float(value)

    def _read_place(self, value: Any) -> dict[str, int]:
        if isinstance(value, dict) and set(value) == {"place", "of"}:
            place, of = value["place"], value["of"]
            if type(place) is int and type(of) is int and 1 <= place <= of and of >= 2:
                return {"place": place, "of": of}
        raise self._wants("a place among others: give a ranking")

    def _wants(self, what: str) -> InvalidInput:
        return InvalidInput(f"{self.name} takes {what}", field="value")

    def reward_of(self, said: Any) -> float | None:
        """Return what an answer (in `read`'s shape) is worth, -1 to 1; None when it counts for nothing."""
        match self.kind:
            case FieldKind.BINARY:
                return self.high_reward if said else self.low_reward
            case FieldKind.SCALE | FieldKind.NUMBER:
                low, high = self.low or 0, self.high or 0
                return self._between((said - low) / (high - low))
            case FieldKind.CHOICE:
                return next((choice.reward for choice in self.choices if choice.name == said), None)
            case FieldKind.RANKING:
                return self._between(1 - (said["place"] - 1) / (said["of"] - 1))
            case FieldKind.TEXT:
                return None

    def _between(self, part: float) -> float:
        """`part` is 0 at the low end and 1 at the high one; an answer of an earlier version may lie outside."""
        part = min(max(part, 0.0), 1.0)
        return self.low_reward + part * (self.high_reward - self.low_reward)

    def is_fit(self, said: Any) -> bool:
        """Say whether an answer to an earlier version of the field still is one."""
        try:
            self.read(said)
        except InvalidInput:
            return False
        return True


REWARD = FieldSpec(name=REWARD_FIELD, kind=FieldKind.NUMBER, title="Reward", low=-1, high=1)
COMMENT = FieldSpec(name=COMMENT_FIELD, kind=FieldKind.TEXT, title="Comment", weight=0, many=True)
HINT = FieldSpec(name=HINT_FIELD, kind=FieldKind.TEXT, title="Hint", weight=0, many=True)
BUILT_IN: Mapping[str, FieldSpec] = {spec.name: spec for spec in (REWARD, COMMENT, HINT)}
_FREE = ("title", "help", "weight")
DEFAULT_TRUST: tuple[dict[str, float], ...] = tuple({source: 1.0} for source in SOURCES)


class Schema(_Strict):
    """The fields of a project, and the tiers of trust: the first tier in which anybody spoke decides, by the weighted
    mean of its sources. A source in no tier is kept and does not count."""

    fields: Annotated[tuple[FieldSpec, ...], Field(max_length=MAX_FIELDS)] = ()
    trust: Annotated[tuple[dict[str, Weight], ...], Field(max_length=len(SOURCES))] = DEFAULT_TRUST

    @field_validator("fields")
    @classmethod
    def add_built_in(cls, fields: tuple[FieldSpec, ...]) -> tuple[FieldSpec, ...]:
        """Add the fields that every project has; of `reward` the words and the weight may be chosen."""
        names = [spec.name for spec in fields]
        for number, spec in enumerate(fields):
            if spec.name in names[:number]:
                raise make_fault(f"two fields have one name, {spec.name}", at=f"{number}.name")
            built_in = BUILT_IN.get(spec.name)
            if built_in and spec != built_in.model_copy(update={name: getattr(spec, name) for name in _FREE}):
                words = f"{spec.name} is built in: only its title, help and weight can be changed"
                raise make_fault(words, at=f"{number}.name")
        missing = [spec for spec in BUILT_IN.values() if spec.name not in names]
        first = [spec for spec in missing if spec is REWARD]
        return (*first, *fields, *missing[len(first) :])

    @field_validator("trust")
    @classmethod
    def check_trust(cls, trust: tuple[dict[str, float], ...]) -> tuple[dict[str, float], ...]:
        """Refuse sources that do not exist or stand in two tiers, and tiers that say nothing."""
        named = [source for tier in trust for source in tier]
        if unknown := sorted(set(named) - set(SOURCES)):
            raise ValueError(f"trust: there is no source {unknown[0]!r}; there are {', '.join(SOURCES)}")
        if len(set(named)) != len(named):
            raise ValueError("trust: a source stands in one tier only")
        if not all(tier and all(weight > 0 for weight in tier.values()) for tier in trust):
            raise ValueError("trust: each tier names a source, and each source has a weight above 0")
        return trust

    @model_validator(mode="after")
    def check_storable(self) -> Self:
        """Refuse texts that no column can hold."""
        if fault := find_fault(self.model_dump(mode="json")):
            raise ValueError(fault)
        return self

    def find_field(self, name: str) -> FieldSpec:
        """Return the field. Raises InvalidInput that names those there are."""
        spec = next((spec for spec in self.fields if spec.name == name), None)
        if spec is None:
            names = ", ".join(spec.name for spec in self.fields)
            raise InvalidInput(f"this project's score schema has no field {name!r}; it has {names}", field="field")
        return spec

    def reward_of(self, *, field: str, value: float | None, said: Any) -> float | None:
        """Return what a label is worth today; None when its field is gone, or does not know such an answer any more."""
        spec = next((spec for spec in self.fields if spec.name == field), None)
        if spec is None:
            return None
        if said is None:
            return value
        return spec.reward_of(said) if spec.is_fit(said) else None


DEFAULT = Schema()


def read_schema(data: Mapping[str, Any]) -> Schema:
    """Return the checked schema. Raises InvalidInput that names all settings that are wrong."""
    try:
        return Schema.model_validate(data)
    except ValidationError as error:
        raise first_of([_tell(one) for one in error.errors()]) from error


def find_faults(data: Mapping[str, Any]) -> list[InvalidInput]:
    """Return all that is wrong with a schema, each as `read_schema` raises it."""
    try:
        Schema.model_validate(data)
    except ValidationError as error:
        return [_tell(one) for one in error.errors()]
    return []


def _tell(fault: ErrorDetails) -> InvalidInput:
    at = fault.get("ctx", {}).get("at")
    place = ".".join(map(str, [*fault["loc"], *([at] if at else [])])) or "fields"
    return InvalidInput(f"{place}: {tell_fault(fault, spelled={NAME: NAME_WORDS})}", field=place)
