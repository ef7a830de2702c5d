"""What comes out of grading one subject: a grade, or why there is none. Shapes only."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Grade:
    """`value` is on the scale of the version's field. `hint` is what the model should have known, for distillation."""

    value: float
    text: str = ""
    hint: str = ""
    n_calls: int = 0


@dataclass(frozen=True, kw_only=True)
class NoGrade:
    """There is nothing to say of this subject; `why` is for people."""

    why: str
    n_calls: int = 0


@dataclass(frozen=True, kw_only=True)
class Failure:
    """It could not be graded. `is_final`: trying again would not help. `retry_after_s`: whoever was asked wants to be
    left alone for so long. `not_before`: nothing was tried, and this is when it can be."""

    why: str
    is_final: bool = False
    n_calls: int = 0
    retry_after_s: int = 0
    not_before: datetime | None = None


Outcome = Grade | NoGrade | Failure
