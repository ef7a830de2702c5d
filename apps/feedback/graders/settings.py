"""What the settings of all kinds have in common. Checked when built: an unknown setting is an error."""

from typing import Annotated, Any, Literal

import re2
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from apps.core.patterns import read_fault
from apps.core.texts import find_fault

MAX_PATTERN = 2000


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Targeted(Settings):
    """Of a grader that can judge each step, or the end of a trajectory for the whole."""

    target: Literal["trajectory", "step"] = "trajectory"


class PassOrFail(Targeted):
    """Of a rule: what its two outcomes are worth on the field's scale."""

    passed: float = 1
    failed: float = -1

    def worth(self, part: float) -> float:
        """Return what passing to this part (0 to 1) is worth."""
        return self.failed + part * (self.passed - self.failed)


class Expecting(PassOrFail):
    """Of a rule that knows the right answer: the same for all, or from the trajectory's metadata."""

    expected: Annotated[str, Field(max_length=10_000)] = ""
    expected_key: Annotated[str, Field(max_length=100)] = "answer"

    def find_expected(self, metadata: dict[str, Any]) -> str | None:
        """Return the right answer, None where the metadata does not tell it."""
        if self.expected:
            return self.expected
        found = metadata.get(self.expected_key)
        return None if found is None or isinstance(found, (dict, list)) else str(found)


def check_pattern(pattern: str) -> str:
    """Return a pattern that RE2 takes, in time that grows with the text alone. Raises ValueError."""
    try:
        compile_pattern(pattern)
    except re2.error as error:
        raise ValueError(f"RE2 does not take this pattern: {read_fault(error)}") from error
    return pattern


def compile_pattern(pattern: str) -> Any:
    """Return the compiled pattern, within a megabyte. Raises re2.error."""
    options = re2.Options()
    options.max_mem, options.log_errors = 1 << 20, False
    return re2.compile(pattern, options)


def check_storable(value: Any) -> Any:
    """Return what a column can hold. Raises ValueError."""
    if fault := find_fault(value):
        raise ValueError(fault)
    return value


Pattern = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN), AfterValidator(check_pattern)]
