"""The white-box example: exact tokens from turn to turn, a verifier that keeps its word to itself, steps that train."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from examples.whitebox_sums.flow import END, FEEDBACK, Episode, play
from examples.whitebox_sums.platform import Platform, PlatformError
from examples.whitebox_sums.tasks import Task, make_tasks

TASK = Task(left=17, right=25)
END_ID = 1


class Letters:
    """A tokenizer with one token a character, and one for the end mark."""

    def encode(self, text: str) -> list[int]:
        return [END_ID if piece == END else ord(piece) for piece in _cut(text)]

    def decode(self, ids: list[int]) -> str:
        return "".join(END if token == END_ID else chr(token) for token in ids)


def _cut(text: str) -> list[str]:
    before, mark, after = text.partition(END)
    return [*before, *([END] if mark else []), *(_cut(after) if mark else [])]


def play_answers(*answers: str) -> tuple[Episode, list[list[int]]]:
    """Play the task with these answers; return the episode and the prompts that were asked."""
    letters, prompts = Letters(), []
    texts = iter(answers)

    def generate(prompt: list[int]) -> dict[str, Any]:
        prompts.append(prompt)
        ids = letters.encode(next(texts))
        return {"token_ids": ids, "log_probs": [-0.5] * len(ids), "stop_reason": "stop"}

    return play(TASK, generate=generate, tokenizer=letters, n_turns=len(answers)), prompts


@pytest.mark.parametrize("first", [f"It is 41.{END}", "It is 41"])
def test_each_prompt_goes_on_from_the_sampled_tokens_themselves(first: str) -> None:
    episode, (prompt, second) = play_answers(first, f"42{END}")
    context = [*prompt, *Letters().encode(first)]
    assert second[: len(context)] == context
    assert Letters().decode(second).count(END) == 3  # question, answer, feedback: a cut answer is given its end
    assert [step["prompt_ids"] for step in episode.steps] == [prompt, second]


@pytest.mark.parametrize(("answer", "reward"), [("42", 1), ("It is 42", 1), ("41", 0), ("42 or 43", 0), ("", 0)])
def test_the_last_number_of_the_last_answer_counts(answer: str, reward: float) -> None:
    episode, _ = play_answers("42", answer)
    assert episode.reward == reward


def test_tasks_come_again_with_their_seed() -> None:
    assert make_tasks(5, seed=3) == make_tasks(5, seed=3)
    assert len({task.name for task in make_tasks(40, seed=0)}) > 10


class _Handler(BaseHTTPRequestHandler):
    statuses: list[int]
    asked: list[tuple[str, str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers["Authorization"], body))
        status = self.statuses.pop(0) if self.statuses else 200
        self.send_response(status)
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(b'{"id": "traj_1"}')

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    _Handler.statuses, _Handler.asked = [], []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_client_speaks_to_the_documented_addresses(server: str) -> None:
    platform = Platform(server, "claw-x")
    trajectory_id = platform.open_trajectory(group="17+25", metadata={})
    platform.generate([1], {"max_tokens": 2})
    platform.submit_steps(trajectory_id, [{"prompt_ids": [1]}])
    platform.add_reward(trajectory_id, 1.0)
    platform.complete(trajectory_id)
    paths = [path for path, _, _ in _Handler.asked]
    assert paths == [
        "/api/v1/trajectories",
        "/v1/generate",
        "/api/v1/trajectories/traj_1/steps",
        "/api/v1/trajectories/traj_1/labels",
        "/api/v1/trajectories/traj_1/complete",
    ]
    assert {secret for _, secret, _ in _Handler.asked} == {"Bearer claw-x"}


def test_the_client_waits_when_it_is_told_to_and_says_what_was_refused(server: str) -> None:
    _Handler.statuses = [503, 429]
    assert Platform(server, "claw-x").open_trajectory(group="", metadata={}) == "traj_1"
    _Handler.statuses = [400]
    with pytest.raises(PlatformError, match="400"):
        Platform(server, "claw-x").complete("traj_1")


class TestFault14:
    """The reference system's verifier tool tells the agent whether it was right: the reward leaks into the prompt."""

    def test_what_the_agent_is_told_does_not_depend_on_the_truth(self) -> None:
        heard = set()
        for answer in ("42", "41", "no idea"):
            _, (prompt, second) = play_answers(f"{answer}{END}", f"42{END}")
            heard.add(tuple(second[len(prompt) + len(Letters().encode(answer)) + 1 :]))
        assert len(heard) == 1

    def test_the_truth_stands_in_no_prompt_unless_the_model_said_it(self) -> None:
        _, prompts = play_answers(f"41{END}", f"40{END}", f"39{END}")
        assert not any("42" in Letters().decode(prompt) for prompt in prompts)
        assert "42" not in FEEDBACK
