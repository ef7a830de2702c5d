"""Rewards from labels, by hand."""

import pytest

from apps.feedback.scoring import Judgement, explain, score_trajectory


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
        ([says("environment", 1, "step_a"), says("rule", -1)], -1, "-1, from one rule label"),
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
