"""A package and an agent before the default model on a real vLLM: the pool has what the engine itself says of it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from django.conf import settings

from apps.registry.models import Engine
from apps.trajectories.messages import text_of
from apps.trajectories.models import Trajectory
from apps.trajectories.recorder import fold_pending
from apps.trajectories.trie import StepView, load_steps
from tests.clients.claude_code import ClaudeCode
from tests.clients.gateway import ROOT, GatewayProcess, find_free_port
from tests.clients.running import run_driver
from tests.factories.registry import EngineFactory
from worker.host import health

CONTEXT = 8192  # as much as the default model was made for
START_S = 300
ANSWER_S = 900  # a small machine may be at other work
TURNS = ("Say hello to the otter.", "And now to the beaver.")

pytestmark = [pytest.mark.clients, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def real_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The default model, served as the platform serves it. The value is its address."""
    port, log = find_free_port(), tmp_path_factory.mktemp("engine") / "engine.log"
    words = ["--model", str(settings.CLAW.model_dir), "--served-name", "tiny", "--port", str(port)]
    with log.open("wb") as output:
        engine = subprocess.Popen(
            [str(settings.CLAW.ml_python), "-m", "worker.engine", *words, "--max-model-len", str(CONTEXT)],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        health.wait_until_healthy(
            "the engine",
            lambda: health.check_http(f"{url}/health"),
            timeout_s=START_S,
            death=lambda: None if engine.poll() is None else log.read_text(errors="replace")[-3000:],
            every_s=0.5,
        )
        yield url
    finally:
        engine.terminate()
        engine.wait(timeout=60)


@pytest.fixture
def engine_row(transactional_db: None, real_engine: str) -> Engine:
    return EngineFactory.create(base_url=real_engine)


@pytest.mark.parametrize("driver", ["openai_responses", "anthropic_messages"])
def test_a_packages_conversation_is_one_chain_of_the_engines_own_tokens(
    gateway: GatewayProcess, real_engine: str, tmp_path: Path, driver: str
) -> None:
    run_driver(driver, gateway=gateway, folder=tmp_path, turns=TURNS, timeout_s=ANSWER_S)

    steps = read_session(real_engine)
    assert len(steps) >= len(TURNS)
    for step, before in zip(steps[1:], steps, strict=False):
        assert step.row.parent_id == before.row.id


def test_claude_codes_session_is_one_trajectory_of_the_engines_own_tokens(
    gateway: GatewayProcess, real_engine: str, tmp_path: Path
) -> None:
    claude = ClaudeCode(tmp_path, gateway=gateway, further={"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "40"})
    for turn in TURNS:
        claude.say(turn, "--system-prompt", "You are a kind assistant.", "--tools", "Bash", timeout_s=ANSWER_S)

    steps = read_session(real_engine)
    assert steps[0].row.trajectory.session_key == claude.session_id
    assert [step.row.parent_id for step in steps[:2]] == [None, steps[0].row.id]


def read_session(engine: str) -> list[StepView]:
    """Fold the one session and check every step's tokens with the engine."""
    fold_pending()
    trajectory = Trajectory.objects.get()
    steps = load_steps(trajectory)
    for step in steps:
        assert step.row.is_exact, step.row.token_check
        assert not step.row.token_check
        assert len(step.logprobs) == len(step.completion_ids) > 0
        assert max(step.logprobs) <= 0
        prompt, answer = (read_tokens(engine, ids) for ids in (step.prompt_ids, step.completion_ids))
        assert text_of(step.messages[-1]).strip()[-40:] in prompt
        said = step.answer.get("content") or ""
        assert said.strip() in answer
    return steps


def read_tokens(engine: str, ids: list[int]) -> str:
    """Return the text that the engine has for them."""
    answer = httpx.post(f"{engine}/detokenize", json={"model": "tiny", "tokens": ids}, timeout=60, trust_env=False)
    return str(answer.raise_for_status().json()["prompt"])
