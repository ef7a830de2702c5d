"""What pydantic finds wrong, in words for people."""

from datetime import datetime
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from apps.core.fault_words import tell_fault

PATTERN = "^[a-z]+$"


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")

    n: Annotated[int, Field(gt=0, le=100_000)] = 1
    part: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0
    text: Annotated[str, Field(min_length=1, max_length=3)] = "a"
    name: Annotated[str, Field(pattern=PATTERN)] = "a"
    rows: Annotated[list[int], Field(min_length=1, max_length=2)] = [1]
    data: dict[str, int] = {}
    flag: bool = False
    at: datetime | None = None
    mode: Literal["one", "two"] = "one"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"n": "x"}, "a whole number is needed"),
        ({"n": 1.5}, "a whole number is needed"),
        ({"n": 0}, "it must be above 0"),
        ({"n": 100_001}, "it must be 100,000 or less"),
        ({"part": "x"}, "a number is needed"),
        ({"part": float("nan")}, "a number is needed"),
        ({"part": -1}, "it must be 0 or more"),
        ({"part": 1}, "it must be below 1"),
        ({"text": ""}, "this may not be empty"),
        ({"text": "abcd"}, "it may have 3 characters"),
        ({"text": 5}, "a text is needed"),
        ({"name": "A"}, "a name is small"),
        ({"rows": []}, "there must be at least 1; here are 0"),
        ({"rows": [1, 2, 3]}, "there may be 2 at most; here are 3"),
        ({"rows": 5}, "a list is needed"),
        ({"data": 5}, "an object in braces is needed"),
        ({"flag": "x"}, "true or false is needed"),
        ({"at": "soon"}, "a date and time is needed, as in 2026-01-31T12:00:00Z"),
        ({"mode": "x"}, "it must be 'one' or 'two'"),
        ({"odd": 1}, "nothing of this name is known"),
    ],
)
def test_each_fault_has_plain_words(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Shape.model_validate(data)
    assert tell_fault(caught.value.errors()[0], spelled={PATTERN: "a name is small"}) == words
