"""A package and an agent before the default model on a real vLLM: the pool has what the engine itself says of it.

So are strict chat templates, and calls that a client insists on.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.conf import settings

from apps.core.contracts.arrays import unpack_ids
from apps.registry.models import Engine
from apps.trajectories.messages import text_of
from apps.trajectories.models import Exchange, Step, Trajectory
from apps.trajectories.recorder import fold_pending
from apps.trajectories.trie import StepView, load_steps
from tests.clients.claude_code import ClaudeCode
from tests.clients.conftest import MODEL
from tests.clients.gateway import GatewayProcess, find_free_port
from tests.clients.running import run_driver
from tests.factories.registry import EngineFactory
from worker.engine.launch import EngineSettings, build_command, count_cores, detect_dtype
from worker.host import health

CONTEXT = 8192  # as much as the default model was made for
START_S = 600
ANSWER_S = 900  # a small machine may be at other work
Json = dict[str, Any]
TURNS = ("Say hello to the otter.", "And now to the beaver.")

pytestmark = [pytest.mark.clients, pytest.mark.timeout(2400)]


@contextmanager
def serve(folder: Path, *, template: Path | None = None) -> Iterator[str]:
    """Serve the default model as the platform does, maybe by another chat template. The value is its address."""
    port, log = find_free_port(), folder / "engine.log"
    model = settings.CLAW.model_dir
    served = EngineSettings(
        model=model, served_name="tiny", port=port, max_model_len=CONTEXT, dtype=detect_dtype(), n_cores=count_cores()
    )
    command, environment = build_command(served, python=str(settings.CLAW.ml_python), base_env=dict(os.environ))
    if template is not None:
        command[command.index("--chat-template") + 1] = str(template)
    with log.open("wb") as output:
        engine = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
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
        os.killpg(engine.pid, signal.SIGKILL)  # the server, and the workers that it would leave behind
        engine.wait(timeout=60)


@pytest.fixture(scope="module")
def real_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(tmp_path_factory.mktemp("engine")) as url:
        yield url


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
    claude = ClaudeCode(tmp_path, gateway=gateway, further={"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "200"})
    flags = ("--system-prompt", "You are a kind assistant.", "--tools", "Bash")
    for turn in TURNS:
        claude.say(turn, *flags, timeout_s=ANSWER_S, may_be_cut=True)

    steps = read_session(real_engine)
    assert steps[0].row.trajectory.session_key == claude.session_id
    assert [step.row.parent_id for step in steps[:2]] == [None, steps[0].row.id]


PLACE = {
    "type": "object",
    "properties": {"where": {"enum": ["here", "there"]}, "n": {"enum": [1, 2, 3]}},
    "required": ["where", "n"],
    "additionalProperties": False,
}


def look(schema: Json) -> Json:
    return {"type": "function", "function": {"name": "look", "parameters": schema}}


@pytest.mark.parametrize("is_named", [False, True])
def test_a_call_that_is_insisted_on_follows_its_schema_and_the_prompt_stays_the_same(
    gateway: GatewayProcess, real_engine: str, is_named: bool
) -> None:
    choice = {"type": "function", "function": {"name": "look"}} if is_named else "required"
    forced = ask(gateway, tools=[look(PLACE)], tool_choice=choice, max_tokens=60)
    (call, *_) = forced["choices"][0]["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert (call["function"]["name"], set(arguments)) == ("look", {"where", "n"})
    assert arguments["where"] in ("here", "there")
    assert arguments["n"] in (1, 2, 3)
    free = ask(gateway, tools=[look(PLACE)], tool_choice="auto", max_tokens=1)
    assert free["prompt_token_ids"] == forced["prompt_token_ids"]


@pytest.mark.parametrize(
    "schema", [{"type": "nonsense"}, {"$ref": "#/nowhere"}, {"properties": {"a": {"pattern": "("}}}]
)
def test_a_schema_that_makes_no_grammar_is_no_reason_to_refuse(
    gateway: GatewayProcess, real_engine: str, schema: Json
) -> None:
    assert ask(gateway, tools=[look(schema)], tool_choice="required", max_tokens=5)["choices"]


STRICT_TEMPLATE = """
{%- for message in messages -%}
{%- if message.role == 'system' and not loop.first -%}
{{- raise_exception('System message must be at the beginning.') -}}
{%- endif -%}
{%- set place = loop.index0 - (1 if messages[0].role == 'system' else 0) -%}
{%- if message.role != 'system' and (message.role == 'user') != (place % 2 == 0) -%}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') -}}
{%- endif -%}
<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}
"""
RULES = "You are kind."
REMINDED: list[Json] = [
    {"role": "system", "content": RULES},
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Hello."},
    {"role": "user", "content": "Is the otter in?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "system", "content": "It is noon."},
    {"role": "user", "content": "Say hello to it."},
]


class TestAStrictTemplate:
    """One that knows a single system message, at the start, and users and assistants who take turns."""

    @pytest.fixture(scope="class")
    @classmethod
    def real_engine(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        folder = tmp_path_factory.mktemp("strict-engine")
        template = folder / "strict.jinja"
        template.write_text(STRICT_TEMPLATE)
        with serve(folder, template=template) as url:
            yield url

    def test_takes_what_every_dialect_sends(self, gateway: GatewayProcess, real_engine: str) -> None:
        bodies: dict[str, Json] = {
            "/v1/chat/completions": {"messages": REMINDED, "max_tokens": 5},
            "/v1/messages": {"system": RULES, "messages": REMINDED[1:], "max_tokens": 5},
            "/v1/responses": {"instructions": RULES, "input": REMINDED[1:], "max_output_tokens": 5},
        }
        for path, body in bodies.items():
            response = post(gateway, path, {"model": MODEL} | body)
            assert "messages" in response.headers["x-claw-mended"]
        fold_pending()
        for step in Step.objects.all():
            assert (step.is_exact, step.token_check) == (True, "")
        for exchange in Exchange.objects.all():
            ids = unpack_ids(bytes(exchange.prompt_token_ids or b""))
            prompt = read_tokens(real_engine, ids)
            assert prompt.startswith(f"<|im_start|>system\n{RULES}\n\nYou are brief.<|im_end|>")
            assert prompt.count("<|im_start|>system") == 1
            assert prompt.count("<|im_start|>user") == 2
            assert "Is the otter in?" in prompt
            assert "It is noon." in prompt


def ask(gateway: GatewayProcess, **fields: Any) -> Json:
    """Return the answer to a small chat, with its token ids."""
    messages = [{"role": "user", "content": "Look around."}]
    body = {"model": MODEL, "messages": messages, "return_token_ids": True, **fields}
    answer: Json = post(gateway, "/v1/chat/completions", body).json()
    return answer


def post(gateway: GatewayProcess, path: str, body: Json) -> httpx.Response:
    headers = {"Authorization": f"Bearer {gateway.secret}"}
    response = httpx.post(gateway.url + path, json=body, headers=headers, timeout=ANSWER_S, trust_env=False)
    assert response.status_code == 200, response.text
    return response


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
