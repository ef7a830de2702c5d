"""Graders that operators install: Python packages with an entry point in the group `claw_platform.graders`.

An entry point is a function `(subject: dict, options: dict) -> value`, where `subject` is what webhooks are sent and
the value is a number, `(number, "why")`, or None for "nothing to say". Only installed packages are ever imported:
nothing that a browser's user types is.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

from pydantic import Field

from apps.core.errors import InvalidInput
from apps.feedback.graders.grades import Failure, Grade, NoGrade, Outcome
from apps.feedback.graders.settings import Targeted
from apps.feedback.graders.subjects import Subject

GROUP = "claw_platform.graders"
MAX_TEXT = 2000
MAX_VALUE = 1e9


class PluginSettings(Targeted):
    """Which of the installed graders, and what it is told."""

    plugin: Annotated[str, Field(min_length=1, max_length=100)]
    options: dict[str, Any] = Field(default_factory=dict)


def list_plugins() -> dict[str, EntryPoint]:
    """Return the installed graders by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def find_plugin(name: str) -> EntryPoint:
    """Return the grader of this name. Raises InvalidInput that names those there are."""
    known = list_plugins()
    if name not in known:
        there_are = f"there are {', '.join(sorted(known))}" if known else f"none is (entry points of {GROUP})"
        raise InvalidInput(f"no grader {name!r} is installed; {there_are}", field="plugin")
    return known[name]


def grade_by_plugin(settings: PluginSettings, subject: Subject) -> Outcome:
    """Have the plugin judge one subject."""
    try:
        said = find_plugin(settings.plugin).load()(subject.as_data(), dict(settings.options))
    except InvalidInput as error:
        return Failure(why=error.message, is_final=True)
    except Exception as error:  # noqa: BLE001 (an operator's code; what it raises is the grader's failure)
        return Failure(why=f"{settings.plugin} failed: {type(error).__name__}: {str(error)[:200]}")
    value, text = said if isinstance(said, tuple) and len(said) == 2 else (said, "")
    if value is None:
        return NoGrade(why=f"{settings.plugin} says nothing of it")
    if not isinstance(value, (int, float)) or not abs(value) <= MAX_VALUE:
        return Failure(why=f"{settings.plugin} returned {repr(value)[:100]}, which is no value", is_final=True)
    return Grade(value=value, text=str(text)[:MAX_TEXT])
