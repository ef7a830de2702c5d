"""A real engine on the tiny model: what the gateway and the registry count on."""

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from apps.accounts.models import Project
from apps.feedback.graders.models import Grading, GradingState
from apps.feedback.graders.running import grade_due, line_up
from apps.feedback.models import Label
from apps.gateway.messages.count import make_tokenize_body
from apps.gateway.messages.shapes import read_count_request, read_messages_request
from apps.registry.client import EngineClient
from apps.registry.entropies import bound_entropy
from apps.registry.verification import TOLERANCES, compare_logprobs
from tests.apps.feedback.graders.conftest import MakeTrajectory, MakeVersion, caller, make_trajectory, make_version
from tests.factories.registry import AliasFactory, EngineFactory
from tests.factories.trajectories import StepFactory
from worker.engine.launch import detect_dtype
from worker.host import health

__all__ = ["caller", "make_trajectory", "make_version"]  # fixtures
pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[3]
START_S = 240
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


class Engine:
    """A running engine, asked by HTTP."""

    def __init__(self, url: str, *, model: Path) -> None:
        self.url = url
        self.model = model

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        request = urllib.request.Request(  # noqa: S310
            self.url + path, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
            read: bytes = answer.read()
            return read

    def chat(self, **fields: Any) -> bytes:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, **fields}
        return self.post("/v1/chat/completions", body)


@pytest.fixture(scope="module")
def engine(ml_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    subprocess.run([ml_python, "-m", "worker.engine.models.tiny", str(folder / "tiny")], cwd=ROOT, check=True)
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--model", str(folder / "tiny"), "--served-name", "tiny", "--port", str(port), "--max-model-len", "256"]
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(
            [ml_python, "-m", "worker.engine", *words], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        health.wait_until_healthy(
            "engine",
            lambda: health.check_http(f"http://127.0.0.1:{port}/health"),
            timeout_s=START_S,
            death=lambda: None if process.poll() is None else (folder / "engine.log").read_text()[-3000:],
            every_s=0.5,
        )
        yield Engine(f"http://127.0.0.1:{port}", model=folder / "tiny")
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_an_answer_carries_its_exact_tokens(engine: Engine) -> None:
    answer = json.loads(engine.chat(return_token_ids=True, logprobs=True, tools=[TOOL]))
    choice = answer["choices"][0]
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    assert len(choice["token_ids"]) == answer["usage"]["completion_tokens"] == len(choice["logprobs"]["content"])
    assert all(item["logprob"] <= 0 for item in choice["logprobs"]["content"])


def test_a_stream_carries_the_same_tokens(engine: Engine) -> None:
    fields = {"return_token_ids": True, "logprobs": True, "temperature": 0}
    whole = json.loads(engine.chat(**fields))
    lines = engine.chat(**fields, stream=True).decode().splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    streamed = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids") or []]
    assert streamed == whole["choices"][0]["token_ids"]


def test_log_probs_are_those_at_the_sampling_temperature(engine: Engine) -> None:
    def gap(temperature: float) -> float:
        answer = json.loads(engine.chat(temperature=temperature, logprobs=True, top_logprobs=5, max_tokens=1))
        found = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        best = sorted((float(top["logprob"]) for top in found), reverse=True)
        return best[0] - best[3]  # what was sampled may stand in the place of the fifth

    assert gap(1.0) > 0.1
    assert gap(2.0) == pytest.approx(gap(1.0) / 2, rel=0.05)


def test_an_over_long_prompt_is_refused_in_words(engine: Engine) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        engine.chat(messages=[{"role": "user", "content": "weather " * 400}])
    assert refused.value.code == 400
    assert "maximum context length" in json.loads(refused.value.read())["error"]["message"]


def test_repeated_prefixes_are_cached(engine: Engine) -> None:
    prompt = list(range(3, 131))
    for _ in range(2):
        engine.post("/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 1})
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{engine.url}/metrics", timeout=10) as answer:  # noqa: S310
            text = answer.read().decode()
        hits = re.search(r"^vllm:prefix_cache_hits_total\{[^}]*\} (\S+)", text, re.MULTILINE)
        if hits and float(hits[1]) >= 96:
            return
        time.sleep(0.2)
    pytest.fail("the engine cached no prefix")


@pytest.mark.parametrize("extra", [{}, {"output_config": {"effort": "low"}}, {"thinking": {"type": "disabled"}}])
def test_it_counts_the_very_prompt_of_a_messages_call(engine: Engine, extra: dict[str, Any]) -> None:
    call = {"type": "tool_use", "id": "call0", "name": "look", "input": {"at": 1}}
    history = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "system", "content": "It is Tuesday."},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call0", "content": "nothing"}]},
    ]
    tools = [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}]
    begun = [*history, {"role": "assistant", "content": "I see"}]
    for messages in (history, begun):
        fields = {"model": "tiny", "system": "You see.", "messages": messages, "tools": tools, **extra}
        request = read_messages_request(json.dumps({**fields, "max_tokens": 4}).encode())
        _, prompt = read_count_request(json.dumps(fields).encode())
        counted = json.loads(engine.post("/tokenize", make_tokenize_body(prompt, engine_name="tiny")))
        answer = json.loads(engine.chat(**request.engine_body, return_token_ids=True))
        assert counted["tokens"] == answer["prompt_token_ids"]
        assert counted["count"] == answer["usage"]["prompt_tokens"]


def test_it_says_which_stop_sequence_it_met(engine: Engine) -> None:
    first = json.loads(engine.chat(temperature=0, max_tokens=8))["choices"][0]
    stop = first["message"]["content"][2:5]
    choice = json.loads(engine.chat(temperature=0, max_tokens=8, stop=[stop]))["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert first["stop_reason"] is None


def test_a_limit_above_its_context_is_refused_in_words_that_name_it(engine: Engine) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        engine.chat(max_tokens=32_000)
    assert (
        "tokens=32000 cannot be greater than max_model_len=256" in json.loads(refused.value.read())["error"]["message"]
    )
    assert json.loads(engine.chat(max_tokens=256))["usage"]["completion_tokens"] > 0


@pytest.mark.clients  # at length: each judge waits for a grammar
@pytest.mark.django_db
def test_judges_are_held_to_what_they_can_read(
    engine: Engine, project: Project, make_trajectory: MakeTrajectory, make_version: MakeVersion
) -> None:
    AliasFactory.create(version__policy__project=project)
    EngineFactory.create(base_url=engine.url)
    tries = [make_trajectory(text, group="g", title=text) for text in ("yes", "no")]
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "b"},
    ]
    StepFactory.create(trajectory=tries[0], parent=tries[0].steps.get(), index=1, messages=messages, text="so")
    asked = {"max_tokens": 96, "question": "?"}
    places = {
        "judge": "{{answer}} {{scale}}",
        "next_state": "{{answer}} {{following}}",
        "relative": "{{conversation}}",
    }
    for kind, template in places.items():
        version = make_version(kind, name=kind, settings={**asked, "template": template})
        line_up(version, [one.pk for one in tries])
        while grade_due(version.pk):
            pass
    failed = Grading.objects.filter(state=GradingState.FAILED) | Grading.objects.filter(state=GradingState.WAITING)
    assert list(failed.values_list("error", flat=True)) == []
    given = Label.objects.exclude(field="hint").order_by("grader__grader__name", "pk")
    kinds = list(given.values_list("grader__grader__kind", flat=True))
    assert kinds == ["judge", "judge", "next_state", "relative", "relative"]
    assert {label.value for label in given.filter(grader__grader__kind="next_state")} <= {-1, 0, 1}


STIR = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
torch.manual_seed(1)
with torch.no_grad():
    cooled = [(model(torch.tensor([range(3, 23)])).logits[0, 10:] / t).log_softmax(-1) for t in (1.0, 0.05)]
    entropies = [(-one.exp() * one).sum(-1).tolist() for one in cooled]
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.05)
    logprobs, ids = model(torch.tensor([range(3, 13)])).logits[0].log_softmax(-1).max(-1)
model.save_pretrained(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
words = [tokenizer.decode([token]) for token in range(0, 320, 20)]
print(json.dumps({"ids": ids.tolist(), "logprobs": logprobs.tolist(), "words": words, "entropies": entropies}))
"""


@dataclass(frozen=True, kw_only=True)
class Stirred:
    """Another model of the same shape, what it holds most likely, and what its tokens mean, as transformers has it."""

    folder: Path
    ids: list[int]
    logprobs: list[float]
    words: list[str]
    entropies: list[list[float]]  # of the model before, after ten longer prompts, at temperatures 1 and 0.05


@pytest.fixture(scope="module")
def stirred(engine: Engine, ml_python: str, tmp_path_factory: pytest.TempPathFactory) -> Stirred:
    folder = tmp_path_factory.mktemp("stirred") / "new"
    answer = subprocess.run(
        [ml_python, "-c", STIR, str(engine.model), str(folder)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return Stirred(folder=folder, **json.loads(answer.stdout.splitlines()[-1]))


def test_its_words_for_tokens_are_the_tokenizers(engine: Engine, stirred: Stirred) -> None:
    with EngineClient(engine.url) as client:
        assert [client.read_text("tiny", [token]) for token in range(0, 320, 20)] == stirred.words


def test_the_bound_of_its_entropies_lies_below_the_models_own(engine: Engine, stirred: Stirred) -> None:
    prompts = [range(3, 14 + place) for place in range(10)]
    loose = TOLERANCES[detect_dtype()].mean
    with EngineClient(engine.url) as client:
        for temperature, exact in zip((1.0, 0.05), stirred.entropies, strict=True):
            tops = client.list_top_logprobs("tiny", prompts, temperature=temperature, read_s=60)
            bounds = [bound_entropy(top.values()) for top in tops]
            slack = loose / temperature
            assert all(0 < bound <= whole + slack for bound, whole in zip(bounds, exact, strict=True))
        assert bounds == pytest.approx(exact, abs=slack)  # of what is nearly decided, twenty tokens tell all


def test_a_whole_model_takes_the_place_of_another_under_calls_and_none_fails(engine: Engine, stirred: Stirred) -> None:
    wanted, tolerance = list(enumerate(stirred.ids)), TOLERANCES[detect_dtype()]
    with EngineClient(engine.url) as client, ThreadPoolExecutor(4) as threads:
        before = client.probe_logprobs("tiny", range(3, 13), wanted)
        gaps = [abs(one - other) for one, other in zip(stirred.logprobs, before, strict=True)]
        assert sum(gaps) / len(gaps) > 2 * tolerance.mean  # the two models can be told apart
        calls = [threads.submit(engine.chat, max_tokens=40, ignore_eos=True, temperature=1) for _ in range(40)]
        for folder, name in ((stirred.folder, "ver_new"), (engine.model, "base")):
            client.pause()
            client.reload_weights(str(folder))
            client.name_weights(name)
            client.resume()
            assert client.read_weights_name() == name
            found = client.probe_logprobs("tiny", range(3, 13), wanted)
            if name == "ver_new":
                assert compare_logprobs(stirred.logprobs, found, tolerance=tolerance, engine_id="").n_tokens == 10
            else:  # what the other model holds likely is seldom among this one's first, which is all an engine tells
                assert median(abs(one - other) for one, other in zip(before, found, strict=True)) <= tolerance.mean
        assert all(json.loads(call.result())["usage"]["completion_tokens"] == 40 for call in calls)
