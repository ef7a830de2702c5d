"""The form of a review: what its buttons are worth, and answers told in the schema's words."""

from typing import Any

import pytest

from apps.console.review_form import read_boxes, tell_answers, tell_label
from apps.feedback.models import Label
from apps.feedback.queues.models import QueueItem
from apps.feedback.score_schema import REWARD, Choice, FieldKind, FieldSpec, Schema
from apps.trajectories.models import Trajectory


@pytest.mark.parametrize(
    ("field", "worth"),
    [
        (
            {
                "kind": "choice",
                "choices": [{"name": "good", "reward": 1}, {"name": "odd"}, {"name": "bad", "reward": -1}],
            },
            [1, None, -1],
        ),
        ({"kind": "scale", "low": 1, "high": 3, "low_reward": 1, "high_reward": -1}, [1, 0, -1]),
        ({"kind": "number", "low": 0, "high": 60, "low_reward": 0, "high_reward": -1}, [0, -0.25, -0.5, -0.75, -1]),
        ({"kind": "binary"}, [-1, 1]),
    ],
)
def test_a_button_knows_what_it_is_worth(field: dict[str, Any], worth: list[float | None]) -> None:
    [box] = read_boxes([FieldSpec.model_validate({"name": "x", **field})], {})
    assert [option.worth for option in box.options] == worth


def test_answers_are_told_in_the_schemas_words_and_those_of_a_field_that_is_gone_in_its_own() -> None:
    choice = FieldSpec(
        name="tone", kind=FieldKind.CHOICE, title="Which tone?", choices=(Choice(name="so_so", title="So so"),)
    )
    specs = [choice, FieldSpec(name="ok", kind=FieldKind.BINARY), REWARD]
    answers = {
        "tone": {"value": "so_so", "text": "hm"},
        "ok": {"value": False},
        "reward": {"value": 0.3},
        "old_one": {"value": 4.0},
    }
    told = [(box.words, box.said, box.text) for box in tell_answers(QueueItem(), answers, specs)]
    assert told == [("Which tone?", "So so", "hm"), ("ok", "No", ""), ("Reward", "0.3", ""), ("old one", "4", "")]


def test_a_pairs_answer_is_told_by_its_letters() -> None:
    one, other = Trajectory(), Trajectory()
    item = QueueItem(trajectory=one, other=other)
    for value, words in ((other.pk, "B is better"), (one.pk, "A is better")):
        [box] = tell_answers(item, {"better": {"value": value, "text": "so"}}, [])
        assert (box.words, box.said, box.text) == ("Which is better?", words, "so")


@pytest.mark.parametrize(
    ("field", "said", "value", "words"),
    [
        ("reward", None, 0.5, "Reward: +0.5"),
        ("reward", None, -0.3, "Reward: −0.3"),
        ("stars", 4.0, 0.5, "How many? 4"),
        ("order", {"place": 2, "of": 3}, 0, "order: 2 of 3"),
        ("tone", "so_so", 0, "tone: So so"),
        ("tone", "no_more", None, "tone: no_more"),
        ("gone_one", True, 1, "gone one: Yes"),
        ("gone_one", {"place": 1, "of": 2}, 1, "gone one: 1 of 2"),
        ("hint", None, None, "Hint"),
    ],
)
def test_a_label_is_told_in_the_schemas_words(field: str, said: Any, value: float | None, words: str) -> None:
    fields = [
        FieldSpec(name="stars", kind=FieldKind.SCALE, title="How many?", low=1, high=5),
        FieldSpec(name="order", kind=FieldKind.RANKING),
        FieldSpec(name="tone", kind=FieldKind.CHOICE, choices=(Choice(name="so_so", title="So so"),)),
    ]
    known = {spec.name: spec for spec in Schema(fields=tuple(fields)).fields}
    box = tell_label(Label(field=field, said=said, value=value), known)
    assert box.line == words


def test_a_number_that_was_typed_stands_in_its_box_again() -> None:
    spec = FieldSpec(name="minutes", kind=FieldKind.NUMBER, low=0, high=60)
    for value, typed in ((7, "7"), (7.5, "7.5"), (15.0, "")):
        [box] = read_boxes([spec], {"minutes": {"value": value}})
        assert box.typed == typed
