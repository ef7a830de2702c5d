"""Rewards from labels, by hand."""

import pytest

from apps.feedback.scoring import Judgement, Weighing, explain, score_trajectory, show_score, show_step_score

LEFT_OUT = "; what was said of {} does not count here: labels of the whole go before its steps'"
YIELDS = "; what graders say of the whole (worth {}) does not count: people or the environment spoke of its {}"


def says(source: str, value: float, step_id: str | None = None) -> Judgement:
    return Judgement(source=source, value=value, step_id=step_id)


@pytest.mark.parametrize(
    ("judgements", "reward", "words"),
    [
        ([], None, "no reward yet: nobody has judged this"),
        ([says("environment", 1)], 1, "1, from one environment label"),
        ([says("environment", 0)], 0, "0, from one environment label"),
        ([says("human", 1), says("human", 0)], 0.5, "0.5 = mean of 2 human labels (1, 0)"),
        (
            [says("judge", 0.8), says("human", -1)],
            -1,
            "-1, from one human label; 1 label of less trusted sources does not count",
        ),
        (
            [says("rule", 1), says("judge", 0.5), says("environment", 0.25)],
            0.25,
            "0.25, from one environment label; 2 labels of less trusted sources do not count",
        ),
        (
            [says("end_user", 1), says("environment", -1)],
            1,
            "1, from one end user label; 1 label of less trusted sources does not count",
        ),
        (
            [says("environment", 1, "step_a"), says("environment", 0, "step_b")],
            0.5,
            "0.5 = mean of the rewards of 2 steps",
        ),
        ([says("environment", 1, "step_a")], 1, "1 = mean of the rewards of 1 step"),
        (
            [says("environment", 1, "step_a"), says("human", -1)],
            -1,
            f"-1, from one human label{LEFT_OUT.format('a step (worth 1)')}",
        ),
        (
            [says("human", -1, "step_a"), says("human", -1, "step_b"), says("environment", 1)],
            1,
            f"1, from one environment label{LEFT_OUT.format('2 steps')}",
        ),
        (
            [says("judge", -1, "step_a"), says("next_state", -1, "step_b"), says("rule", 1)],
            1,
            f"1, from one rule label{LEFT_OUT.format('2 steps')}",
        ),
        (
            [says("environment", 1, "step_a"), says("rule", -1)],
            1,
            f"1 = mean of the rewards of 1 step{YIELDS.format(-1, 'steps')}",
        ),
        (
            [says("end_user", -1, "step_a"), says("rule", 0, "step_b"), says("judge", 1), says("rule", 1)],
            -0.5,
            f"-0.5 = mean of the rewards of 2 steps{YIELDS.format(1, 'steps')}",
        ),
        (
            [says("human", value) for value in (1, 1, 1, 1, 1, 0)],
            5 / 6,
            "0.833 = mean of 6 human labels (1, 1, 1, 1, 1, …)",
        ),
    ],
)
def test_the_reward_and_its_explanation(judgements: list[Judgement], reward: float | None, words: str) -> None:
    score = score_trajectory(judgements)
    assert score.reward == (None if reward is None else pytest.approx(reward))
    assert explain(score) == words


def test_steps_have_rewards_of_their_own() -> None:
    score = score_trajectory([says("judge", 1, "step_a"), says("human", -1, "step_a"), says("rule", 0.5, "step_b")])
    assert score.step_rewards == {"step_a": -1, "step_b": 0.5}
    assert score.reward == -0.25


def test_a_step_that_nobody_judged_is_not_zero() -> None:
    score = score_trajectory([says("environment", 1, "step_a")])
    assert "step_b" not in score.step_rewards
    assert score.reward == 1


def test_the_order_of_labels_does_not_matter() -> None:
    judgements = [says("judge", 0.3), says("human", 1), says("human", 0), says("rule", -1, "step_a")]
    assert score_trajectory(judgements) == score_trajectory(
        [judgements[3], judgements[1], judgements[2], judgements[0]]
    )


TOGETHER = Weighing(fields={"reward": 1.0}, trust=[{"human": 1.0, "judge": 0.3}, {"rule": 1.0}])


def test_sources_of_one_tier_are_weighed() -> None:
    """(0.5 x 1 + 0.8 x 0.3) / 1.3 by hand."""
    score = score_trajectory([says("human", 1), says("human", 0), says("judge", 0.8), says("rule", -1)], TOGETHER)
    assert score.reward == pytest.approx(0.74 / 1.3)
    words = "0.569 = (2 people 0.5 + judge 0.8 \N{MULTIPLICATION SIGN} 0.3) / 1.3"
    assert explain(score) == f"{words}; 1 label of less trusted sources does not count"


def test_a_source_that_is_in_no_tier_does_not_count() -> None:
    assert score_trajectory([says("end_user", 1)], TOGETHER).reward is None
    assert score_trajectory([says("end_user", 1), says("rule", -1)], TOGETHER).reward == -1


def test_fields_are_weighed() -> None:
    weighing = Weighing(fields={"reward": 1.0, "clarity": 3.0, "comment": 0.0})
    judgements = [
        says("human", 1),
        Judgement(source="judge", value=-1, field="clarity"),
        Judgement(source="human", value=1, field="comment"),
        Judgement(source="human", value=1, field="gone"),
    ]
    score = score_trajectory(judgements, weighing)
    assert score.reward == -0.5
    times = "\N{MULTIPLICATION SIGN}"
    assert explain(score) == (
        f"-0.5 = (reward 1 + clarity -1 {times} 3) / 4; reward: 1, from one human label; "
        "clarity: -1, from one judge label"
    )
    shown = show_score(score)
    assert (shown["reward"], shown["from"], [term["field"] for term in shown["fields"]]) == (
        -0.5,
        "labels",
        ["reward", "clarity"],
    )
    [clarity] = shown["fields"][1]["sources"]
    assert clarity == {"source": "judge", "reward": -1, "weight": 1.0, "values": (-1,)}


def test_a_step_without_labels_of_its_own_has_the_mean_of_its_spans() -> None:
    spans = [
        Judgement(source="human", value=value, step_id="step_a", span=(start, start + 3))
        for start, value in ((0, 1.0), (10, 0.0))
    ]
    score = score_trajectory(spans)
    assert (score.step_rewards, score.reward) == ({"step_a": 0.5}, 0.5)
    assert score_trajectory([*spans, says("environment", -1, "step_a")]).step_rewards == {"step_a": -1}


def test_what_a_rule_says_of_a_step_or_a_whole_yields_to_people_who_spoke_of_words_in_it() -> None:
    span = Judgement(source="human", value=1, step_id="step_a", span=(0, 3))
    score = score_trajectory([span, says("rule", -1, "step_a"), says("rule", -1)])
    assert (score.step_rewards, score.reward, score.verdict) == ({"step_a": 1}, 1, None)
    shown = show_step_score(score, "step_a")
    assert shown["words"] == f"1 = mean of the rewards of 1 span{YIELDS.format(-1, 'words')}"


def test_a_grader_that_is_trusted_more_than_people_yields_to_nobody() -> None:
    weighing = Weighing(fields={"reward": 1.0}, trust=[{"rule": 1.0}, {"human": 1.0, "judge": 0.3}])
    step = says("human", 1, "step_a")
    assert score_trajectory([step, says("rule", -1)], weighing).reward == -1
    assert score_trajectory([step, says("judge", -1)], weighing).reward == -1


def test_the_trust_in_a_grader_is_not_lent_to_those_who_spoke_beside_it() -> None:
    """A judge is trusted more than the rule of the whole, the user less: nobody who knows is trusted more."""
    trust = [{"judge": 1.0}, {"rule": 1.0}, {"end_user": 1.0}]
    weighing = Weighing(fields={"reward": 1.0, "tone": 1.0}, trust=trust)
    judged = says("judge", 1, "step_a")
    user = Judgement(source="end_user", value=1, step_id="step_a", field="tone")
    assert score_trajectory([judged, user, says("rule", -1)], weighing).reward == -1
    in_words = [
        Judgement(source="judge", value=1, step_id="step_a", span=(0, 3)),
        Judgement(source="end_user", value=1, step_id="step_a", span=(4, 6)),
    ]
    assert score_trajectory([*in_words, says("rule", -1)], weighing).reward == -1


def test_a_score_from_steps_says_so() -> None:
    assert show_score(score_trajectory([says("rule", 1, "step_a")]))["from"] == "steps"
    assert show_score(score_trajectory([]))["from"] is None
