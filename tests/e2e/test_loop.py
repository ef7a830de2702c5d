"""The loop on real parts: an agent calls, its calls are labelled, a run learns from them, and the new weights speak.

Real: vLLM, DeepSpeed, Postgres, Valkey, Celery workers, uvicorn. Only the model is tiny and random.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from tests.e2e.conftest import RunningPlatform, wait_for

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

N_STEPS = 2
TRAJECTORIES_PER_STEP = 4
RECIPE = {
    "n_steps": N_STEPS,
    "trajectories_per_step": TRAJECTORIES_PER_STEP,
    "minibatch_samples": 4,
    "learning_rate": 1e-2,  # random weights: a step should be seen
    "wait_for_data_s": 60,
}
FINAL = {"succeeded", "failed", "cancelled"}


def agent_client(platform: RunningPlatform, base_url: str = "") -> openai.OpenAI:
    """An unmodified client that is given a base URL and a key."""
    return openai.OpenAI(base_url=base_url or f"{platform.base_url}/v1", api_key=platform.agent_key, max_retries=0)


def chat(client: openai.OpenAI, messages: list[Any], *, stream: bool = False) -> str:
    """Ask once; returns the text."""
    options: dict[str, Any] = {"model": "default", "messages": messages, "max_tokens": 12, "temperature": 1.0}
    if not stream:
        return client.chat.completions.create(**options).choices[0].message.content or ""
    return "".join(
        chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**options, stream=True)
    )


def play_episode(platform: RunningPlatform, number: int) -> str:
    """Two turns in a trajectory of their own, labelled and completed; returns its id."""
    trajectory = platform.call("POST", "trajectories", channel="train")
    with agent_client(platform, trajectory["base_url"]) as client:
        messages: list[Any] = [{"role": "user", "content": f"What is the time in city {number}?"}]
        messages.append({"role": "assistant", "content": chat(client, messages)})
        messages.append({"role": "user", "content": "And the weather?"})
        chat(client, messages, stream=True)
    platform.call("POST", f"trajectories/{trajectory['id']}/complete")
    platform.call("POST", f"trajectories/{trajectory['id']}/labels", value=float(number % 2), source="environment")
    return str(trajectory["id"])


@contextmanager
def calling_all_the_time(platform: RunningPlatform) -> Iterator[list[str]]:
    """A second agent that never pauses; yields what went wrong with its calls."""
    failures: list[str] = []
    is_over = threading.Event()
    n_calls = 0

    def call() -> None:
        nonlocal n_calls
        with agent_client(platform) as client:
            while not is_over.is_set():
                try:
                    chat(client, [{"role": "user", "content": "Are you there?"}])
                except openai.OpenAIError as error:
                    failures.append(str(error))
                n_calls += 1
                time.sleep(0.2)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield failures
    finally:
        is_over.set()
        thread.join()
        assert n_calls > 0


def wait_for_run(platform: RunningPlatform, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = {}

    def is_over() -> bool:
        run.update(platform.call("GET", f"runs/{run_id}"))
        return run["state"] in FINAL

    wait_for(is_over, timeout_s=420, words=f"the run is not over: {run}")
    return run


def live_version(platform: RunningPlatform) -> dict[str, Any]:
    alias: dict[str, Any] = platform.call("GET", "policy")["aliases"]["live"]
    return alias


def version_that_speaks(platform: RunningPlatform) -> str:
    """Ask once more, and return which version the step of that call is stamped with."""
    trajectory = platform.call("POST", "trajectories", channel="val")
    with agent_client(platform, trajectory["base_url"]) as client:
        chat(client, [{"role": "user", "content": "Who speaks?"}])
    steps: list[dict[str, Any]] = []

    def is_folded() -> bool:
        steps[:] = platform.call("GET", f"trajectories/{trajectory['id']}/steps")["items"]
        return bool(steps)

    wait_for(is_folded, timeout_s=30, words="the call is not in the pool")
    return str(steps[0]["version"])


def test_labelled_calls_become_weights_that_speak(platform: RunningPlatform) -> None:
    base = live_version(platform)
    assert base["number"] == 0
    played = [play_episode(platform, number) for number in range(N_STEPS * TRAJECTORIES_PER_STEP)]
    wait_for(lambda: all_folded(platform, played), timeout_s=60, words="calls are missing in the pool")

    with calling_all_the_time(platform) as failures:
        run = platform.call("POST", "runs", name="loop", recipe=RECIPE, idempotency_key="loop")
        assert platform.call("POST", "runs", recipe=RECIPE, idempotency_key="loop")["id"] == run["id"]
        run = wait_for_run(platform, run["id"])
        assert (run["state"], run["steps_done"]) == ("succeeded", N_STEPS), run
        wait_for(lambda: live_version(platform)["number"] == N_STEPS, timeout_s=180, words="the version is not live")
    assert failures == []

    check_versions(platform)
    check_metrics(platform, run["id"])
    newest = live_version(platform)
    assert version_that_speaks(platform) == newest["version"]

    platform.call("POST", "aliases/live", version=base["version"])  # the way back, at once
    assert live_version(platform)["number"] == 0
    wait_for(
        lambda: version_that_speaks(platform) == base["version"], timeout_s=30, words="the base does not speak again"
    )


def test_after_kill_9_of_the_engine_the_live_version_speaks_again(platform: RunningPlatform) -> None:
    newest = platform.call("GET", "versions")["items"][0]
    platform.call("POST", "aliases/live", version=newest["id"])
    platform.kill("vllm.entrypoints.openai.api_server")
    wait_for(lambda: not is_served(platform), timeout_s=60, words="nobody noticed that the engine is gone")
    wait_for(lambda: is_served(platform, newest["id"]), timeout_s=300, words="the version is not back on the engine")
    assert version_that_speaks(platform) == newest["id"]


def is_served(platform: RunningPlatform, version_id: str = "") -> bool:
    """Say whether the engine is up and, if a version is named, has it loaded."""
    (engine,) = platform.call("GET", "engines")["items"]
    return engine["state"] == "up" and (not version_id or version_id in engine["versions"])


def test_after_kill_9_of_the_train_worker_the_run_goes_on(platform: RunningPlatform) -> None:
    played = [play_episode(platform, number) for number in range(TRAJECTORIES_PER_STEP)]
    wait_for(lambda: all_folded(platform, played), timeout_s=60, words="calls are missing in the pool")
    run = platform.call("POST", "runs", recipe={**RECIPE, "n_steps": 1})
    wait_for(lambda: has_batch(platform, run["id"]), timeout_s=180, words="the run leased nothing")
    platform.kill("-Q", "train")
    run = wait_for_run(platform, run["id"])
    assert (run["state"], run["steps_done"]) == ("succeeded", 1), run
    kinds = [event["kind"] for event in platform.call("GET", f"runs/{run['id']}/events")["items"]]
    assert kinds.count("attempt.started") == 2
    assert kinds.count("step.done") == 1


def has_batch(platform: RunningPlatform, run_id: str) -> bool:
    """Say whether a step of the run is being trained, or was."""
    return bool(platform.call("GET", f"runs/{run_id}/batches")["items"])


def all_folded(platform: RunningPlatform, trajectories: list[str]) -> bool:
    """Say whether every episode has its two steps and its reward."""
    rows = [platform.call("GET", f"trajectories/{trajectory}") for trajectory in trajectories]
    return all(row["n_steps"] == 2 and row["reward"] is not None and row["state"] == "complete" for row in rows)


def check_versions(platform: RunningPlatform) -> None:
    """Each version is the child of the one before, and the engine computes what the trainer computed."""
    newest, middle, base = platform.call("GET", "versions")["items"]
    assert [version["number"] for version in (newest, middle, base)] == [2, 1, 0]
    assert (newest["parent"], middle["parent"]) == (middle["id"], base["id"])
    assert (newest["aliases"], middle["aliases"]) == (["live"], ["previous"])
    for version in (newest, middle):
        assert version["state"] == "ready"
        assert version["verification"]["n_tokens"] > 10
        assert version["verification"]["max_abs_diff"] <= 1e-3


def check_metrics(platform: RunningPlatform, run_id: str) -> None:
    """Both steps have their curves' points; before its update the trainer agreed with the engine."""
    points = platform.call("GET", f"runs/{run_id}/metrics")["items"]
    assert [point["step"] for point in points] == [1, 2]
    first = points[0]["values"]
    assert {"loss", "kl", "ratio_mean", "ess", "entropy", "grad_norm", "tokens_per_s", "reward_mean"} <= set(first)
    assert first["reward_mean"] == 0.5
    assert first["mean_logprob_diff"] <= 1e-3
    assert first["staleness_mean"] == 0.0
    assert points[1]["values"]["staleness_mean"] == 1.0
