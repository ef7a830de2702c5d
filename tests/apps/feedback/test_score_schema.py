"""What the fields of a score schema take, and what each answer is worth, by hand."""

from typing import Any

import pytest

from apps.core.errors import InvalidInput
from apps.feedback.score_schema import DEFAULT, read_schema

FIELDS: dict[str, dict[str, Any]] = {
    "binary": {"kind": "binary"},
    "stars": {"kind": "scale", "low": 1, "high": 5},
    "upside_down": {"kind": "scale", "low": 0, "high": 10, "low_reward": 1, "high_reward": 0},
    "seconds": {"kind": "number", "low": 0, "high": 60, "low_reward": 0, "high_reward": -1},
    "verdict": {
        "kind": "choice",
        "choices": [{"name": "right", "reward": 1}, {"name": "wrong", "reward": -0.5}, {"name": "unsure"}],
    },
    "order": {"kind": "ranking"},
}


def schema_of(**fields: dict[str, Any]) -> Any:
    return read_schema({"fields": [{"name": name, **spec} for name, spec in fields.items()]})


@pytest.mark.parametrize(
    ("field", "value", "worth"),
    [
        ("binary", True, 1),
        ("binary", 0, -1),
        ("stars", 1, -1),
        ("stars", 4, 0.5),
        ("stars", 5.0, 1),
        ("upside_down", 10, 0),
        ("upside_down", 5, 0.5),
        ("seconds", 30, -0.5),
        ("verdict", "wrong", -0.5),
        ("verdict", "unsure", None),
        ("order", {"place": 1, "of": 4}, 1),
        ("order", {"place": 3, "of": 4}, -1 / 3),
        ("order", {"place": 2, "of": 2}, -1),
    ],
)
def test_what_an_answer_is_worth(field: str, value: Any, worth: float | None) -> None:
    spec = schema_of(**FIELDS).find_field(field)
    assert spec.reward_of(spec.read(value)) == (None if worth is None else pytest.approx(worth))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("binary", 2),
        ("binary", "yes"),
        ("stars", 0),
        ("stars", 3.5),
        ("stars", True),
        ("stars", float("nan")),
        ("seconds", 61),
        ("verdict", "maybe"),
        ("verdict", 1),
        ("verdict", []),
        ("order", 1),
        ("order", {"place": 5, "of": 4}),
        ("order", {"place": 1, "of": 1}),
        ("comment", 1),
        ("reward", 1.01),
        ("reward", "good"),
    ],
)
def test_it_says_what_a_field_takes(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"^{field} takes "):
        schema_of(**FIELDS).find_field(field).read(value)


def test_an_unknown_field_is_told_with_those_there_are() -> None:
    with pytest.raises(InvalidInput, match="no field 'clarity'; it has reward, comment, hint"):
        DEFAULT.find_field("clarity")


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ({"fields": [{"name": "Clarity", "kind": "binary"}]}, "fields.0.name"),
        ({"fields": [{"name": "x", "kind": "stars"}]}, "fields.0.kind"),
        ({"fields": [{"name": "x", "kind": "scale"}]}, "needs low and high"),
        ({"fields": [{"name": "x", "kind": "scale", "low": 5, "high": 1}]}, "low lies below high"),
        ({"fields": [{"name": "x", "kind": "scale", "low": 0, "high": 0.5}]}, "whole steps"),
        ({"fields": [{"name": "x", "kind": "scale", "low": 0, "high": 1000}]}, "100 at most"),
        ({"fields": [{"name": "x", "kind": "binary", "low": 0}]}, "for scales and numbers"),
        ({"fields": [{"name": "x", "kind": "choice"}]}, "at least one"),
        ({"fields": [{"name": "x", "kind": "choice", "choices": [{"name": "a"}, {"name": "a"}]}]}, "one name"),
        ({"fields": [{"name": "x", "kind": "binary", "many": True}]}, "many is for texts"),
        ({"fields": [{"name": "x", "kind": "binary", "high_reward": 2}]}, "high_reward"),
        ({"fields": [{"name": "x", "kind": "binary", "weight": -1}]}, "weight"),
        ({"fields": [{"name": "x", "kind": "binary", "weight": float("nan")}]}, "weight"),
        ({"fields": [{"name": "x", "kind": "binary"}] * 2}, "two fields have one name"),
        ({"fields": [{"name": "reward", "kind": "binary"}]}, "reward is built in"),
        ({"fields": [{"name": "x", "kind": "binary", "title": "\x00"}]}, "cannot be stored"),
        ({"trust": [{"oracle": 1}]}, "no source 'oracle'"),
        ({"trust": [{"human": 1}, {"human": 1}]}, "one tier only"),
        ({"trust": [{}]}, "names a source"),
        ({"trust": [{"human": 0}]}, "weight above 0"),
        ({"colour": 1}, "colour"),
    ],
)
def test_it_refuses_what_makes_no_sense(definition: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        read_schema(definition)


def test_built_in_fields_are_always_there_and_may_be_weighed() -> None:
    schema = read_schema({"fields": [{"name": "reward", "kind": "number", "low": -1, "high": 1, "weight": 0}]})
    assert [(spec.name, spec.weight) for spec in schema.fields] == [("reward", 0), ("comment", 0), ("hint", 0)]
    assert read_schema(schema.model_dump(mode="json")) == schema


def test_an_answer_to_a_field_that_changed_counts_for_what_it_still_says() -> None:
    five, ten = schema_of(stars={"kind": "scale", "low": 1, "high": 5}), schema_of(stars={**FIELDS["stars"], "high": 9})
    assert five.reward_of(field="stars", value=1, said=5) == 1
    assert ten.reward_of(field="stars", value=1, said=5) == 0
    assert schema_of(stars={"kind": "binary"}).reward_of(field="stars", value=1, said=5) is None
    assert DEFAULT.reward_of(field="stars", value=1, said=5) is None
