"""What the demo says at its end, and when it counts as failed."""

import json
from dataclasses import replace

import pytest

from examples.demo.report import (
    Iteration,
    Outcome,
    StatusLines,
    render_comparison,
    render_last_line,
    render_next,
    render_table,
)

GOOD = Outcome(
    steps=10,
    trajectories=5,
    reward_before=0.1,
    reward_after=0.8,
    perfect_before=0.05,
    perfect_after=0.75,
    versions=5,
    failed_requests=0,
    lost_steps=0,
    mean_logprob_diff=0.031234,
    max_logprob_diff=0.25,
    companion_calls=30,
    companion_versions=6,
    seconds=600.5,
)


def test_a_closed_loop_has_no_faults() -> None:
    assert GOOD.faults == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reward_after": 0.1}, "did not rise"),
        ({"failed_requests": 1}, "1 requests failed"),
        ({"lost_steps": 2}, "2 answers are not in the pool"),
    ],
)
def test_each_fault_is_named(change: dict[str, float], words: str) -> None:
    (fault,) = replace(GOOD, **change).faults  # type: ignore[arg-type]
    assert words in fault


def test_the_last_line_is_json_with_the_promised_fields() -> None:
    head, _, tail = render_last_line(GOOD).partition(" ")
    figures = json.loads(tail)
    assert head == "DEMO"
    assert figures["mean_logprob_diff"] == 0.03123
    promised = {"steps", "trajectories", "reward_before", "reward_after", "versions", "failed_requests"}
    assert promised | {"max_logprob_diff", "seconds"} <= figures.keys()


def test_a_tiny_difference_is_not_told_as_none() -> None:
    _, _, tail = render_last_line(replace(GOOD, max_logprob_diff=9.5367e-06)).partition(" ")
    assert json.loads(tail)["max_logprob_diff"] == 9.537e-06


def test_tables_show_each_round_and_before_and_after() -> None:
    row = Iteration(number=1, spoken_by="v0", reward=0.2, share_perfect=0.1, metrics={"loss": -0.1}, seconds=50.0)
    assert render_table([row]).splitlines()[-1].split()[:4] == ["1", "v0", "0.20", "0.10"]
    assert render_comparison(GOOD, n_held_out=96).splitlines()[2].split() == ["reward", "0.10", "0.80"]


def test_each_status_of_a_run_is_said_once() -> None:
    statuses = StatusLines()
    told = [statuses.tell(f"waits for trajectories: {n} of 8 ready") for n in (0, 0, 3)]
    assert told == ["waits for trajectories: 0 of 8 ready", "", "waits for trajectories: 3 of 8 ready"]


def test_its_end_says_where_to_look_now() -> None:
    stays = render_next("http://here/p/demo/", base_url="http://here", stays=True)
    assert "http://here/p/demo/" in stays
    assert "make stop" in stays
    ended = render_next("http://here/p/demo/", base_url="http://here", stays=False)
    assert "`make run`, then http://here/p/demo/" in ended
