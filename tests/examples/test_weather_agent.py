"""The demo's task: cities apart, a verifier that cannot be talked into a reward, an agent that plays two turns."""

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessage

from examples.weather_agent.agent import Episode, play
from examples.weather_agent.tasks import TRAIN_CITIES, VAL_CITIES, Task, generate_tasks
from examples.weather_agent.verifier import score, score_answer, score_call

ROOT = Path(__file__).resolve().parents[2]

TASK = Task(question="Is it warm in Oslo?", city="Oslo", tool="get_weather", seed=1, channel="val")
NUMBER, SKY = TASK.result.split(" degrees and ")


def call(name: str = "get_weather", arguments: str = '{"city": "Oslo"}', *, said: str = "") -> ChatCompletionMessage:
    function = {"name": name, "arguments": arguments}
    return ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": said, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    )


def say(text: str) -> ChatCompletionMessage:
    return ChatCompletionMessage(role="assistant", content=text)


def test_cities_of_training_and_of_the_check_are_apart() -> None:
    assert not set(TRAIN_CITIES) & set(VAL_CITIES)
    assert (len(set(TRAIN_CITIES)), len(set(VAL_CITIES))) == (110, 40)


def test_tasks_are_the_same_for_the_same_seed_and_even_over_tools() -> None:
    tasks = generate_tasks(96, channel="val", seed=3)
    assert tasks == generate_tasks(96, channel="val", seed=3)
    assert tasks != generate_tasks(96, channel="val", seed=4)
    assert sum(task.tool == "get_time" for task in tasks) == 48
    assert all(task.city in VAL_CITIES and task.city in task.question for task in tasks)


@pytest.mark.parametrize(
    ("message", "marks"),
    [
        (say("It is warm."), 0.0),
        (say('<tool_call>{"name": '), 0.1),
        (call("get_time"), 0.2),
        (call("get_moon"), 0.2),
        (call(arguments='{"city": "Bergen"}'), 0.4),
        (call(arguments='{"city": "Oslo", "unit": "K"}'), 0.4),
        (call(arguments="Oslo"), 0.4),
        (call(said="Let me look."), 0.8),
        (call(), 1.0),
    ],
)
def test_the_call_has_marks_for_each_part_that_is_right(message: ChatCompletionMessage, marks: float) -> None:
    assert score_call(message, task=TASK) == marks


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        (f"It is {NUMBER} degrees and {SKY} in Oslo.", 1.0),
        (f"It is {NUMBER} degrees in Oslo.", 0.5),
        (f"It is 1{NUMBER} degrees in Oslo today.", 0.0),
        (TASK.result, 0.5),
        (f"<tool_response>It is {TASK.result} in Oslo.</tool_response>", 0.0),
        (f"<tool_response>It is {TASK.result} in Oslo.", 0.0),
        (f'<tool_call>{{"name": "get_weather"}}</tool_call> It is {TASK.result} in Oslo.', 0.0),
        ("", 0.0),
    ],
)
def test_the_sentence_must_report_the_result_in_its_own_words(text: str, marks: float) -> None:
    assert score_answer(say(text), task=TASK, is_cut=False) == marks


def test_a_sentence_that_was_cut_off_is_worth_half() -> None:
    assert score_answer(say(f"It is {TASK.result} in Oslo"), task=TASK, is_cut=True) == 0.5


def test_another_call_or_no_second_turn_is_no_answer() -> None:
    assert score_answer(call(), task=TASK, is_cut=False) == 0.0
    assert score_answer(None, task=TASK, is_cut=False) == 0.0


def complete(message: dict[str, Any], *, number: int) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": "default",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}],
    }


async def play_against(answers: list[dict[str, Any]]) -> tuple[Episode, list[dict[str, Any]]]:
    """Play TASK against a server that gives these answers in turn; returns the episode and the requests."""
    requests: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(json.loads(request.content))
        return httpx2.Response(200, json=complete(answers[len(requests) - 1], number=len(requests)))

    transport = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    async with AsyncOpenAI(base_url="http://platform/v1", api_key="claw-test", http_client=transport) as client:
        return await play(client, TASK, model="default", temperature=0.8), requests


async def test_two_turns_bring_the_tools_result_back_to_the_model() -> None:
    first = call().model_dump(exclude_none=True)
    final = {"content": f"It is {TASK.result} in Oslo."}
    episode, requests = await play_against([first, final])
    assert score(episode) == 1.0
    assert episode.response_ids == ("chatcmpl-1", "chatcmpl-2")
    assert requests[1]["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": TASK.result}
    assert requests[1]["messages"][: len(requests[0]["messages"])] == requests[0]["messages"]


async def test_an_answer_without_a_call_ends_the_episode() -> None:
    episode, requests = await play_against([{"content": "It is warm."}])
    assert (len(requests), episode.final, score(episode)) == (1, None, 0.0)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("get_moon", '{"city": "Oslo"}', "no such tool"),
        ("get_weather", "{}", "no city"),
        ("get_weather", "Oslo", "not JSON"),
        ("get_weather", "[]", "no city"),
    ],
)
async def test_a_senseless_call_gets_an_error_in_words(name: str, arguments: str, words: str) -> None:
    _, requests = await play_against([call(name, arguments).model_dump(exclude_none=True), {"content": "Sorry."}])
    assert words in requests[1]["messages"][-1]["content"]


class Gateway(BaseHTTPRequestHandler):
    """Answers every call without a tool call, and keeps what was said of the answers."""

    server: "Server"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers["Authorization"], body))
        answer = complete({"content": "It is warm."}, number=len(self.server.requests))
        told = json.dumps(answer if self.path == "/v1/chat/completions" else {}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, *_args: object) -> None:
        """Stay silent."""


class Server(ThreadingHTTPServer):
    requests: list[tuple[str, str, dict[str, Any]]]


def run_by_itself(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.weather_agent", *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "CLAW_KEY"} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_by_itself_it_plays_tasks_and_rewards_each_by_its_answers_id() -> None:
    with Server(("127.0.0.1", 0), Gateway) as server:
        server.requests = []
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        done = run_by_itself("--url", url, "--tasks", "2", CLAW_KEY="claw-test")
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 tasks, mean reward 0.00"
    paths = ["/v1/chat/completions", "/api/v1/responses/chatcmpl-1/labels"]
    paths += ["/v1/chat/completions", "/api/v1/responses/chatcmpl-3/labels"]
    assert [path for path, _, _ in server.requests] == paths
    assert {key for _, key, _ in server.requests} == {"Bearer claw-test"}
    assert server.requests[1][2] == {"value": 0.0, "source": "environment"}


def test_by_itself_it_says_what_it_misses() -> None:
    assert "set CLAW_KEY or pass --key" in run_by_itself().stderr
    with Server(("127.0.0.1", 0), Gateway) as closed:
        url = f"http://127.0.0.1:{closed.server_port}"
    refused = run_by_itself("--url", url, "--key", "claw-test")
    assert (refused.returncode, f"the platform at {url} did not answer" in refused.stderr) == (1, True)


def test_what_runs_by_itself_is_told_with_its_command() -> None:
    told = (ROOT / "examples" / "README.md").read_text()
    names = [path.parent.name for path in (ROOT / "examples").glob("*/__main__.py")]
    assert len(names) == 3
    assert [name for name in names if f"-m examples.{name}" not in told and f"`make {name}`" not in told] == []
