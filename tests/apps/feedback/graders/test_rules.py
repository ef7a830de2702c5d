"""Rules on single answers, by hand."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from apps.feedback.graders import json_schemas, rules
from apps.feedback.graders.grades import Failure, Grade, NoGrade
from apps.feedback.graders.subjects import Subject
from apps.trajectories.models import Trajectory


def subject(text: str = "", *, step_id: str | None = None, **fields: Any) -> Subject:
    metadata = fields.pop("metadata", {})
    answer = {"role": "assistant", "content": text}
    return Subject(trajectory=Trajectory(metadata=metadata), step_id=step_id, answer=answer, **fields)


@pytest.mark.parametrize(
    ("given", "text", "value"),
    [
        ({"expected": "Paris"}, " paris \n", 1),
        ({"expected": "Paris", "ignore_case": False}, "paris", -1),
        ({"expected": "Paris"}, "It is Paris.", -1),
        ({"expected": "Paris", "anywhere": True}, "It is Paris.", 1),
        ({"expected": "Paris", "passed": 0.5, "failed": 0}, "Paris", 0.5),
        ({"expected_key": "capital"}, "Rome", 1),
    ],
)
def test_exact(given: dict[str, Any], text: str, value: float) -> None:
    outcome = rules.grade_exact(rules.ExactSettings(**given), subject(text, metadata={"capital": "Rome"}))
    assert isinstance(outcome, Grade)
    assert outcome.value == value


@pytest.mark.parametrize("metadata", [{}, {"answer": None}, {"answer": {"a": 1}}])
def test_without_what_is_expected_there_is_nothing_to_say(metadata: dict[str, Any]) -> None:
    it = subject("x", metadata=metadata)
    for outcome in (
        rules.grade_exact(rules.ExactSettings(), it),
        rules.grade_numeric(rules.NumericSettings(), it),
    ):
        assert isinstance(outcome, NoGrade)
        assert "'answer'" in outcome.why


@pytest.mark.parametrize(
    ("pattern", "must_match", "text", "value"),
    [(r"(?i)sorry", False, "Sorry, no.", -1), (r"(?i)sorry", False, "Sure.", 1), (r"^\d+$", True, "42", 1)],
)
def test_regex(pattern: str, must_match: bool, text: str, value: float) -> None:
    outcome = rules.grade_regex(rules.RegexSettings(pattern=pattern, must_match=must_match), subject(text))
    assert isinstance(outcome, Grade)
    assert outcome.value == value


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "", "x" * 2001, "(?:a{1000}){1000}"])
def test_a_pattern_that_could_run_away_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError) as caught:
        rules.RegexSettings(pattern=pattern)
    assert "b'" not in str(caught.value.errors()[0]["msg"])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 1,234.5 then.", 1234.5),
        ("from 3 to -4e2", -400),
        ("no", None),
        ("", None),
        (".5", 0.5),
        ("-", None),
        ("1e999", None),
        ("3.", 3),
    ],
)
def test_the_last_number(text: str, number: float | None) -> None:
    assert rules.read_number(text) == number


@pytest.mark.parametrize(
    ("given", "text", "value"),
    [
        ({"expected": "72"}, "5 + 67 = 72", 1),
        ({"expected": "72"}, "71", -1),
        ({"expected": "72", "absolute": 1}, "71", 1),
        ({"expected": "100", "relative": 0.05}, "96", 1),
        ({"expected": "72"}, "I do not know", -1),
    ],
)
def test_numeric(given: dict[str, Any], text: str, value: float) -> None:
    outcome = rules.grade_numeric(rules.NumericSettings(**given), subject(text))
    assert isinstance(outcome, Grade)
    assert outcome.value == value


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}},
    "patternProperties": {"^n_": {"type": "integer"}},
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"name": "Ann", "n_x": 1}', 1),
        ('```json\n{"name": "Ann"}\n```', 1),
        ('{"name": "ann"}', -1),
        ('{"name": "Ann", "n_x": "1"}', -1),
        ("[]", -1),
        ("no JSON", -1),
        ("[" * 100_000, -1),
    ],
)
def test_json_schema(text: str, value: float) -> None:
    outcome = rules.grade_json_schema(rules.JsonSchemaSettings(json_schema=SCHEMA), subject(text))
    assert isinstance(outcome, Grade)
    assert outcome.value == value


@pytest.mark.parametrize(
    "schema",
    [{"type": "nonsense"}, {"pattern": "("}, {"properties": {"a": {"pattern": r"(a)\1"}}}, {"title": "x" * 60_000}],
)
def test_a_bad_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        rules.JsonSchemaSettings(json_schema=schema)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "http://127.0.0.1:1/schema.json"}, "leads out"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "leads out"),
        ({"$ref": "#"}, "back to itself"),
        ({"anyOf": [{"$ref": "#"}]}, "back to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "back to itself"),
        ({"$ref": "#/$defs/a"}, "leads to nothing"),
        ({"$ref": "#a"}, "leads to nothing"),
        ({"$dynamicRef": "#a"}, "dynamicRef"),
    ],
)
def test_a_reference_that_cannot_be_followed_is_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        rules.JsonSchemaSettings(json_schema=schema)


def test_a_schema_may_go_on_inside_the_value() -> None:
    schema = {"properties": {"next": {"$ref": "#"}, "$ref": {"type": "string"}}, "const": {"$ref": "x"}}
    schema |= {"required": ["next"], "$defs": {"a": {"enum": [1]}}, "not": {"$ref": "#/$defs/a"}}
    assert rules.JsonSchemaSettings(json_schema=schema).json_schema == schema


def test_a_schema_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_schemas, "MAX_S", 0.2)
    parts = {f"a{number}": {"allOf": [{"$ref": f"#/$defs/a{number + 1}"}] * 2} for number in range(40)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**parts, "a40": {"type": "object"}}}
    outcome = rules.grade_json_schema(rules.JsonSchemaSettings(json_schema=schema), subject("{}"))
    assert isinstance(outcome, Failure)
    assert outcome.is_final
    assert outcome.why == "the schema cannot be used: it takes more than 0.2 s"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, true, null, [1], [true], {}]", 1),
        ("[1, 1.0]", -1),
        ('[{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}]', -1),
        ('["1", 1, 1.5, 0, false, "", null]', 1),
        (json.dumps([{"a": number} for number in range(50_000)]), 1),  # each with each would take an hour
    ],
)
def test_items_that_are_to_differ(text: str, value: float) -> None:
    outcome = rules.grade_json_schema(rules.JsonSchemaSettings(json_schema={"uniqueItems": True}), subject(text))
    assert isinstance(outcome, Grade)
    assert outcome.value == value


def tool(text: str) -> dict[str, str]:
    return {"role": "tool", "content": text}


@pytest.mark.parametrize(
    ("results", "need_all", "value"),
    [
        (["ok", "Error: no such file"], False, 0),
        (["ok", "Error: no such file"], True, -1),
        ([json.dumps({"error": None}), json.dumps({"isError": True}), "fine", "fine"], False, 0.5),
    ],
)
def test_tool_calls(results: list[str], need_all: bool, value: float) -> None:
    settings = rules.ToolCallSettings(need_all=need_all)
    whole = rules.grade_tool_calls(settings, subject(messages=[tool(text) for text in results]))
    step = rules.grade_tool_calls(settings, subject(step_id="s", following=[tool(text) for text in results]))
    assert isinstance(whole, Grade)
    assert (whole, whole.value) == (step, value)
    assert isinstance(rules.grade_tool_calls(settings, subject("hi")), NoGrade)


def test_a_scorer_of_reasoning_gym() -> None:
    settings = rules.ReasoningGymSettings(task="leg_counting")
    entry = {"question": "How many legs have 2 tigers?", "answer": "8", "metadata": {}}
    for text, value in (("They have <answer>8</answer>.", 1), ("<answer>7</answer>", -1)):
        outcome = rules.grade_reasoning_gym(settings, subject(text, metadata={"entry": entry}))
        assert isinstance(outcome, Grade)
        assert outcome.value == value
    unknown = rules.grade_reasoning_gym(rules.ReasoningGymSettings(task="nope"), subject(metadata={"entry": entry}))
    assert isinstance(unknown, Failure)


def test_an_answer_that_a_scorer_would_calculate_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "SCORE_S", 1.0)
    entry = {"question": "Make 5 of 2 and 3.", "answer": "2 + 3", "metadata": {"numbers": [2, 3], "target": 5}}
    settings = rules.ReasoningGymSettings(task="countdown")
    right = rules.grade_reasoning_gym(settings, subject("<answer>2 + 3</answer>", metadata={"entry": entry}))
    endless = rules.grade_reasoning_gym(settings, subject("<answer>9**9**9</answer>", metadata={"entry": entry}))
    assert isinstance(right, Grade)
    assert isinstance(endless, Failure)
    assert endless.is_final
    assert endless.why == "the scorer failed: it takes more than 1 s"


def test_without_reasoning_gym_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str) -> None:
        raise ModuleNotFoundError

    monkeypatch.setattr(rules, "import_module", refuse)
    rules.find_scorer.cache_clear()
    outcome = rules.grade_reasoning_gym(rules.ReasoningGymSettings(task="x"), subject(metadata={"entry": {}}))
    assert isinstance(outcome, Failure)
    assert "requirements/graders.txt" in outcome.why
