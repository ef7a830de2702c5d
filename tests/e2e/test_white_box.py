"""The white-box example and the token door against a whole platform with a real engine."""

import subprocess
from pathlib import Path

import httpx
import pytest
from django.conf import settings

from tests.e2e.conftest import ROOT, RunningPlatform

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
N_TASKS, N_TRIES = 2, 2


def test_the_example_runs_and_its_tokens_are_the_engines(platform: RunningPlatform, tiny_model: Path) -> None:
    words = ["--url", platform.base_url, "--key", platform.agent_key, "--model", str(tiny_model)]
    numbers = ["--tasks", str(N_TASKS), "--tries", str(N_TRIES), "--max-tokens", "6"]
    command = [str(settings.CLAW.ml_python), "-m", "examples.whitebox_sums", *words, *numbers]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert said.returncode == 0, said.stderr
    assert f"{N_TASKS * N_TRIES} trajectories" in said.stdout

    rows = platform.call("GET", "trajectories?limit=200")["items"]
    rows = [row for row in rows if "question" in row["metadata"]]
    assert len(rows) == N_TASKS * N_TRIES
    for row in rows:
        assert (row["state"], row["n_steps"], row["reward"] is not None) == ("complete", 2, True)
        first, second = platform.call("GET", f"trajectories/{row['id']}/steps?tokens=1")["items"]
        assert first["is_exact"]
        assert second["is_exact"]
        assert second["parent"] == first["id"]
        assert first["version"]
        assert second["version"]  # another one, if a version went live in between
        assert len(first["completion_token_ids"]) == len(first["logprobs"]) > 0
        context = [*first["prompt_token_ids"], *first["completion_token_ids"]]
        assert second["prompt_token_ids"][: len(context)] == context


@pytest.mark.parametrize(
    "sampling",
    [{"max_tokens": 3, "ignore_eos": True}, {"max_tokens": 40, "stop_token_ids": list(range(512)), "ignore_eos": True}],
)
def test_ids_and_log_probs_are_equally_many_for_every_ending(
    platform: RunningPlatform, sampling: dict[str, object]
) -> None:
    """Fault 1 of the reference, on a real engine: the token that ends an answer is one of its ids."""
    answer = httpx.post(
        f"{platform.base_url}/v1/generate",
        json={"prompt_ids": [5, 6, 7], "sampling_params": sampling},
        headers={"Authorization": f"Bearer {platform.agent_key}"},
        timeout=120,
    ).json()
    n_tokens = 3 if sampling["max_tokens"] == 3 else 1  # any first token ends the second one
    assert len(answer["token_ids"]) == len(answer["log_probs"]) == n_tokens == answer["usage"]["completion_tokens"]
    assert answer["stop_reason"] == ("length" if n_tokens == 3 else "stop")
    if n_tokens == 1:
        assert answer["stopped_by"] == answer["token_ids"][-1]


def test_a_prompt_that_is_too_long_is_refused_in_the_engines_words(platform: RunningPlatform) -> None:
    answer = httpx.post(
        f"{platform.base_url}/v1/generate",
        json={"prompt_ids": [5] * 5000},
        headers={"Authorization": f"Bearer {platform.agent_key}"},
        timeout=120,
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert answer.json()["error"]["param"] == "prompt_ids"
