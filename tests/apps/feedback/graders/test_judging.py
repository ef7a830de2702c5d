"""What judges are asked, how strictly their answers are read, and what votes make together."""

import json
from re import findall

import pytest
from pydantic import ValidationError

from apps.feedback.graders.judging import (
    GROUP_TEMPLATE,
    JUDGE_TEMPLATE,
    NEXT_TEMPLATE,
    AskingSettings,
    JudgeSettings,
    NextStateSettings,
    Nonsense,
    RelativeSettings,
    Vote,
    ask_judge,
    ask_next_state,
    ask_relative,
    combine_scores,
    cut_middle,
    join_votes,
    read_scores,
    read_vote,
    shape_scores,
    shape_vote,
)
from apps.feedback.graders.subjects import Subject
from apps.trajectories.models import Trajectory

HELLO = Subject(
    trajectory=Trajectory(metadata={"right": "Paris"}),
    step_id=None,
    messages=[{"role": "user", "content": "Capital of France? {{answer}}"}],
    answer={
        "role": "assistant",
        "content": "Paris",
        "tool_calls": [{"function": {"name": "look", "arguments": '{"at": "map"}'}}],
    },
    following=[{"role": "user", "content": "thanks"}],
)


@pytest.mark.parametrize(
    "text",
    [
        '{"score": 0.5, "reason": "fair"}',
        '```json\n{"score": 0.5, "reason": "fair"}\n```',
        '<think>Let me see {"score": 1}</think>\n{"score": 0.5, "reason": "fair"}',
        '  {"reason": "fair", "score": 0.5}\n',
    ],
)
def test_one_object_is_read(text: str) -> None:
    assert read_vote(text, low=-1, high=1) == Vote(score=0.5, reason="fair")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0.5",
        "I would say 0.5",
        'Sure! {"score": 0.5}',
        '{"score": 2}',
        '{"score": "0.5"}',
        '{"score": true}',
        '{"score": NaN}',
        '{"score": null}',
        '[{"score": 0.5}]',
        "[" * 5000,
    ],
)
def test_everything_else_is_nonsense_and_quoted(text: str) -> None:
    with pytest.raises(Nonsense) as caught:
        read_vote(text, low=-1, high=1)
    assert text.strip()[:20] in str(caught.value) or not text


ENDS = (': "fair", "hint": "be', ': "fair", "hi', ': "fair"', ': "fair', ': "fair\\', ': "fair\\u00', ": ", " \n \n")


@pytest.mark.parametrize("end", ENDS)
def test_of_an_answer_that_was_held_to_its_shape_the_words_may_end_early(end: str) -> None:
    text = f'{{"score": -0.15, "reason"{end}'
    vote = read_vote(text, low=-1, high=1, is_held=True)
    assert (vote.score, vote.reason) == (-0.15, "fair" if "fair" in end else "")
    assert read_scores(f'{{"scores": [0, 0.5], "reason"{end}', count=2, is_held=True)[0] == [0, 0.5]
    with pytest.raises(Nonsense):
        read_vote(text, low=-1, high=1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no",
        "[",
        '{"score": -0.1',
        '{"score": -0.1,',
        '{"score": 0.1, "rea',
        '{"reason": "',
        '{"reason": "", "score": 0.1',
        '{"score": "reason',
    ],
)
def test_one_that_ends_in_its_score_is_nonsense_all_the_same(text: str) -> None:
    with pytest.raises(Nonsense):
        read_vote(text, low=-1, high=1, is_held=True)


def test_a_scale_wants_whole_scores() -> None:
    assert read_vote('{"score": 4}', low=1, high=5, is_whole=True).score == 4
    with pytest.raises(Nonsense, match="whole"):
        read_vote('{"score": 4.5}', low=1, high=5, is_whole=True)


def test_scores_of_a_group_are_as_many_as_its_tries() -> None:
    assert read_scores('{"scores": [0, 1], "reason": "x"}', count=2) == ([0, 1], "x")
    for text in ('{"scores": [0]}', '{"scores": [0, 2]}', '{"scores": "01"}', "{}"):
        with pytest.raises(Nonsense):
            read_scores(text, count=2)


@pytest.mark.parametrize(
    ("scores", "how", "whole"),
    [
        ([1, -1, 1], "majority", 1),
        ([1, 0, -1], "majority", 0),
        ([1, 1, -1, -1, 0], "majority", -1),
        ([0.2, 0.4, 1], "median", 0.4),
        ([0, 1], "mean", 0.5),
    ],
)
def test_votes_by_hand(scores: list[float], how: str, whole: float) -> None:
    assert combine_scores(scores, how) == whole


@pytest.mark.parametrize("template", [JUDGE_TEMPLATE, NEXT_TEMPLATE, GROUP_TEMPLATE])
def test_what_is_copied_from_the_question_is_no_reason_and_no_hint(template: str) -> None:
    copied = findall(r'"reason": "(.*?)"', template)
    assert len(copied) == 1
    vote = read_vote(
        json.dumps({"score": -1, "reason": copied[0], "hint": f"{copied[0].capitalize()}."}), low=-1, high=1
    )
    assert (vote.reason, vote.hint) == ("", "")


def test_the_hint_of_a_failure_is_kept() -> None:
    bad, good = Vote(score=-1, reason="wrong", hint="look first"), Vote(score=1, reason="right", hint="nothing")
    assert join_votes([bad, bad, good], "majority").hint == "look first"
    assert join_votes([good, good, bad], "majority").hint == ""
    assert "majority of 3 votes (-1, -1, 1): wrong" in join_votes([bad, bad, good], "majority").reason


def test_the_question_shows_what_is_judged_and_fills_nothing_twice() -> None:
    settings = JudgeSettings(reference_key="right", question="Is it right?")
    [message] = ask_judge(settings, HELLO, scale="from 1 to 5")
    text = message["content"]
    assert "Capital of France? {{answer}}" in text
    assert 'calls look({"at": "map"})' in text
    assert "<reference>\nParis\n</reference>" in text
    assert '"score": a number from 1 to 5' in text
    assert "Is it right?" in text


def test_the_next_state_is_what_came_back() -> None:
    [message] = ask_next_state(NextStateSettings(), HELLO)
    assert "<next>\n[user]\nthanks\n</next>" in message["content"]


def test_tries_are_numbered() -> None:
    [message] = ask_relative(RelativeSettings(), [HELLO, HELLO])
    assert message["content"].count("<try number=") == 2


def test_the_middle_of_what_is_very_long_is_left_out() -> None:
    text = cut_middle("a" * 1000 + "b" * 3000, 400)
    assert text.startswith("a" * 100 + "\n[… 3600 characters left out …]\n")
    assert text.endswith("b" * 300)


def test_a_shape_holds_what_can_be_read_and_nothing_else() -> None:
    whole = shape_vote(low=1, high=5, is_whole=True, max_tokens=96)
    assert whole["properties"]["score"] == {"enum": [1, 2, 3, 4, 5]}
    assert whole["properties"]["reason"] == {"type": "string", "maxLength": 32}
    between = shape_vote(low=-1, high=0.123456789, is_whole=False, max_tokens=96)["properties"]["score"]["enum"]
    assert (len(between), between[0], between[-1]) == (21, -1, 0.123456789)
    assert all(read_vote(json.dumps({"score": score}), low=-1, high=0.123456789) for score in between)
    several = shape_scores(count=3, max_tokens=96)["properties"]["scores"]
    assert (several["minItems"], several["maxItems"]) == (3, 3)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"template": "{{answer}} {{scale}} {{secret}}"}, "no place"),
        ({"template": "{{scale}}"}, r"must hold \{\{answer"),
        ({"n_votes": 3}, "raise the temperature"),
        ({"n_votes": 9, "temperature": 1, "timeout_s": 100}, "may wait 540 s"),
        ({"question": "\x00"}, "cannot be stored"),
        ({"colour": "red"}, "Extra"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        JudgeSettings(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "template", "reason"),
    [
        (NextStateSettings, "{{answer}} {{following}} {{scale}}", r"no place \{\{scale"),
        (NextStateSettings, "{{answer}} {{question}}", r"must hold \{\{following"),
        (RelativeSettings, "{{conversation}} {{answer}}", r"no place \{\{answer"),
        (RelativeSettings, "{{question}}", r"must hold \{\{conversation"),
    ],
)
def test_a_template_names_only_what_its_kind_fills(settings: type[AskingSettings], template: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        settings(template=template)
