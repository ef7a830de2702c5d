"""Graders that look and count: exact, regex, JSON schema, numeric, tool calls, and `reasoning-gym`'s scorers. Each is a
function of settings and subject; none calls anybody."""

import json
import math
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from apps.core.errors import InvalidInput
from apps.feedback.graders.apart import ApartError, work_apart
from apps.feedback.graders.grades import Failure, Grade, NoGrade, Outcome
from apps.feedback.graders.json_schemas import TooLongError, find_fault, find_schema_fault
from apps.feedback.graders.settings import (
    Expecting,
    PassOrFail,
    Pattern,
    check_pattern,
    check_storable,
    compile_pattern,
)
from apps.feedback.graders.subjects import Subject
from apps.trajectories.messages import spoken_text

MAX_TEXT = 1_000_000  # of an answer; what is longer fails
MAX_SCHEMA = 50_000
SCORE_S = 10.0
TASK_NAME = r"^[a-z0-9_]{1,60}$"
TASK_WORDS = "a task's name has lower case letters, digits and _, 60 characters at most"
_DATA = {"const", "default", "enum", "examples"}  # whose values are no schemas
_NUMBER = compile_pattern(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?")
_TAGGED = compile_pattern(r"(?s)<answer>(.*?)</answer>")
TOOL_ERROR = r'(?i)^\s*(error|traceback|exception|failed)\b|"is_?error"\s*:\s*true|"error"\s*:\s*[^n\s]'


class ExactSettings(Expecting):
    """The answer is the expected text."""

    ignore_case: bool = True
    anywhere: bool = False  # it holds the text; else it is the text


def grade_exact(settings: ExactSettings, subject: Subject) -> Outcome:
    """Compare the answer, without blanks around it, with the expected text."""
    expected = settings.find_expected(subject.trajectory.metadata)
    if expected is None:
        return _no_expected(settings)
    said, wanted = subject.text.strip(), expected.strip()
    if settings.ignore_case:
        said, wanted = said.casefold(), wanted.casefold()
    is_right = wanted in said if settings.anywhere else said == wanted
    return _pass(settings, is_right, f"expected {_quote(expected)}")


class RegexSettings(PassOrFail):
    """The answer has, or has not, what a pattern matches."""

    pattern: Pattern
    must_match: bool = True


def grade_regex(settings: RegexSettings, subject: Subject) -> Outcome:
    """Search the answer for the pattern (RE2)."""
    found = compile_pattern(settings.pattern).search(subject.text[:MAX_TEXT])
    words = f"matched {_quote(found.group(0))}" if found else "no match"
    return _pass(settings, bool(found) == settings.must_match, words)


class NumericSettings(Expecting):
    """The last number in the answer is the expected one."""

    absolute: Annotated[float, Field(ge=0)] = 1e-6
    relative: Annotated[float, Field(ge=0, le=1)] = 0.0


def grade_numeric(settings: NumericSettings, subject: Subject) -> Outcome:
    """Compare the last number in the answer with the expected one."""
    expected = settings.find_expected(subject.trajectory.metadata)
    if expected is None:
        return _no_expected(settings)
    wanted = read_number(expected)
    if wanted is None:
        return NoGrade(why=f"what is expected is no number: {_quote(expected)}")
    said = read_number(subject.text[-MAX_TEXT:])
    if said is None:
        return _pass(settings, False, "no number in the answer")
    is_right = math.isclose(said, wanted, rel_tol=settings.relative, abs_tol=settings.absolute)
    return _pass(settings, is_right, f"{said:g}, expected {wanted:g}")


def read_number(text: str) -> float | None:
    """Return the last number in a text, None when there is none."""
    found = [match.group(0) for match in _NUMBER.finditer(text) if any(map(str.isdigit, match.group(0)))]
    value = float(found[-1].replace(",", "")) if found else math.nan
    return value if math.isfinite(value) else None


class JsonSchemaSettings(PassOrFail):
    """The answer is JSON that a schema (2020-12) describes. Its patterns are RE2; references stay inside it."""

    json_schema: dict[str, Any]

    @field_validator("json_schema")
    @classmethod
    def check_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        """Refuse what is no schema, and patterns that RE2 does not take."""
        check_storable(schema)
        if len(json.dumps(schema)) > MAX_SCHEMA:
            raise ValueError(f"a schema may have {MAX_SCHEMA} characters")
        try:
            fault = find_schema_fault(schema)
        except TooLongError as error:
            raise ValueError(f"the schema cannot be used: {error}") from error
        if fault:
            raise ValueError(f"this is no JSON schema: {fault}")
        _check_patterns(schema)
        _check_references(schema)
        return schema


def _check_patterns(part: Any) -> None:
    if isinstance(part, dict):
        if isinstance(part.get("pattern"), str):
            check_pattern(part["pattern"])
        for name in part.get("patternProperties") or ():
            check_pattern(name)
        for inner in part.values():
            _check_patterns(inner)
    elif isinstance(part, list):
        for inner in part:
            _check_patterns(inner)


def _check_references(schema: dict[str, Any]) -> None:
    """Refuse references that lead out of the schema, to nothing in it, or round in a circle. Raises ValueError."""
    resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    followed: set[int] = set()
    try:
        for part in _find_objects(schema):
            _follow(part, resolver, above=frozenset(), followed=followed)
    except RecursionError as error:
        raise ValueError("the schema's references follow each other too far") from error


def _find_objects(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
        part = [inner for name, inner in part.items() if name not in _DATA]
    for inner in part if isinstance(part, list) else ():
        yield from _find_objects(inner)


def _follow(part: Any, resolver: Any, *, above: frozenset[int], followed: set[int]) -> None:
    """Follow what looks at the same value as `part`: one that comes back to itself would never end."""
    if id(part) in above:
        raise ValueError("a $ref leads back to itself and looks at the same value again, without end")
    if not isinstance(part, dict) or id(part) in followed:
        return
    for inner in _list_in_place(part, resolver):
        _follow(inner, resolver, above=above | {id(part)}, followed=followed)
    followed.add(id(part))


def _list_in_place(part: dict[str, Any], resolver: Any) -> Iterator[Any]:
    if isinstance(part.get("$dynamicRef"), str):
        raise ValueError("$dynamicRef is not read here: point to a part of the schema with $ref")
    if isinstance(reference := part.get("$ref"), str):
        yield _look_up(reference, resolver)
    for name in ("allOf", "anyOf", "oneOf"):
        yield from part[name] if isinstance(part.get(name), list) else ()
    for name in ("if", "then", "else", "not"):
        yield part.get(name)
    if isinstance(dependent := part.get("dependentSchemas"), dict):
        yield from dependent.values()


def _look_up(reference: str, resolver: Any) -> Any:
    if not reference.startswith("#"):
        raise ValueError(f"$ref {reference[:100]!r} leads out of the schema: one that stays inside begins with #")
    try:
        return resolver.lookup(reference).contents
    except Unresolvable as error:
        raise ValueError(f"$ref {reference[:100]!r} leads to nothing in the schema") from error


def grade_json_schema(settings: JsonSchemaSettings, subject: Subject) -> Outcome:
    """Read the answer as JSON, in a fence or bare, and check it."""
    text = subject.text
    if len(text) > MAX_TEXT:
        return _pass(settings, False, f"the answer has more than {MAX_TEXT} characters")
    try:
        value = json.loads(strip_fence(text))
    except (ValueError, RecursionError) as error:
        return _pass(settings, False, f"the answer is no JSON: {str(error)[:200]}")
    try:
        fault = find_fault(settings.json_schema, value)
    except (Unresolvable, RecursionError, TooLongError) as error:
        return Failure(why=f"the schema cannot be used: {str(error)[:200]}", is_final=True)
    return _pass(settings, not fault, fault[:300] or "as the schema says")


def strip_fence(text: str) -> str:
    """Return what stands inside a Markdown fence, if the whole text is one."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text[text.index("\n") + 1 : -3].strip()
    return text


class ToolCallSettings(PassOrFail):
    """The agent's tool calls worked: the part of the results that do not look like an error."""

    error_pattern: Pattern = TOOL_ERROR
    need_all: bool = False  # one error is a failure


def grade_tool_calls(settings: ToolCallSettings, subject: Subject) -> Outcome:
    """Count the results of tools that came back: to this step, or in the whole conversation."""
    messages = subject.following if subject.step_id is not None else subject.messages
    results = [message for message in messages if isinstance(message, dict) and message.get("role") == "tool"]
    if not results:
        return NoGrade(why="no tool has answered")
    pattern = compile_pattern(settings.error_pattern)
    n_wrong = sum(bool(pattern.search(spoken_text(result)[:MAX_TEXT])) for result in results)
    part = 1 - n_wrong / len(results)
    if settings.need_all:
        part = float(n_wrong == 0)
    return Grade(
        value=settings.worth(part), text=f"{len(results) - n_wrong} of {len(results)} tool results are no error"
    )


class ReasoningGymSettings(PassOrFail):
    """`reasoning-gym`'s own scorer for one of its tasks; the trajectory's metadata holds the task's entry."""

    task: Annotated[str, Field(pattern=TASK_NAME)]
    entry_key: Annotated[str, Field(max_length=100)] = "entry"
    answer_in: Literal["tag", "whole"] = "tag"  # <answer>…</answer>, the last one; without it the whole answer


def grade_reasoning_gym(settings: ReasoningGymSettings, subject: Subject) -> Outcome:
    """Have the task's scorer judge the answer: 0 to 1."""
    entry = subject.trajectory.metadata.get(settings.entry_key)
    if not isinstance(entry, dict):
        return NoGrade(why=f"the trajectory's metadata has no entry {settings.entry_key!r}")
    text = subject.text[:MAX_TEXT]
    if settings.answer_in == "tag":
        tagged = _TAGGED.findall(text)
        text = tagged[-1] if tagged else text
    try:
        scorer = find_scorer(settings.task)
        part = work_apart(lambda: scorer(answer=text.strip(), entry=entry), seconds=SCORE_S)
    except InvalidInput as error:
        return Failure(why=error.message, is_final=True)
    except ApartError as error:  # a hundred scorers by others; what they raise is the grader's failure
        return Failure(why=f"the scorer failed: {error}", is_final=True)
    if not 0 <= part <= 1:
        return Failure(why=f"the scorer said {part:g}, which is not from 0 to 1", is_final=True)
    return Grade(value=settings.worth(part), text=f"{settings.task}: {part:g} of 1")


@lru_cache(maxsize=32)
def find_scorer(task: str) -> Any:
    """Return the scorer of a task. Raises InvalidInput when there is none, or the package is not installed."""
    try:
        gym = import_module("reasoning_gym")
        factory = import_module("reasoning_gym.factory")
    except ModuleNotFoundError as error:
        raise InvalidInput(
            "reasoning-gym is not installed on this worker: pip install -r requirements/graders.txt", field="task"
        ) from error
    if task not in factory.DATASETS:
        raise InvalidInput(f"reasoning-gym has no task {task!r}", field="task")
    return gym.get_score_answer_fn(task)


def _no_expected(settings: Expecting) -> NoGrade:
    return NoGrade(why=f"the trajectory's metadata has no {settings.expected_key!r}")


def _pass(settings: PassOrFail, is_passed: bool, words: str) -> Grade:  # noqa: FBT001 (what it is about)
    return Grade(value=settings.worth(float(is_passed)), text=words)


def _quote(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:79]}…")
