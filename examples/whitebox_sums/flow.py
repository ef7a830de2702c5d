"""One episode in tokens: ask, feed back, ask again, and keep every token exactly as it was sampled.

What the model said is never decoded and encoded again: the next prompt is the last one, then the sampled ids, then the
ids of what the environment says. Knows ChatML and no platform.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from examples.whitebox_sums.tasks import Task

Json = dict[str, Any]
Generate = Callable[[list[int]], Json]
"""From a prompt's ids to `token_ids`, `log_probs`, `stop_reason`."""

END = "<|im_end|>"
# The same whatever was answered: a word on whether it was right would be the reward, told to the agent.
FEEDBACK = "Check it once more and answer with the number."


class Tokenizer(Protocol):
    """As much of a tokenizer as an episode needs."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text in which special tokens are spelled out."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids."""
        ...


@dataclass(frozen=True, kw_only=True)
class Episode:
    """What was done, as steps to submit, and what it was worth."""

    steps: list[Json]
    answers: list[str]
    reward: float


def play(task: Task, *, generate: Generate, tokenizer: Tokenizer, n_turns: int = 2) -> Episode:
    """Play the task in `n_turns` model calls; the last answer counts."""
    end = tokenizer.encode(END)
    prompt = tokenizer.encode(_open_turn(task.question))
    steps, answers = [], []
    for turn in range(n_turns):
        said = generate(prompt)
        answers.append(tokenizer.decode([token for token in said["token_ids"] if token not in end]))
        steps.append(
            {
                "client_step_id": f"turn-{turn}",
                "prompt_ids": prompt,
                "response_ids": said["token_ids"],
                "log_probs": said["log_probs"],
                "finish_reason": said["stop_reason"],
                "text": answers[-1],
            }
        )
        is_ended = said["token_ids"][-len(end) :] == end  # an answer that was cut has no end of its own
        prompt = [
            *prompt,
            *said["token_ids"],
            *([] if is_ended else end),
            *tokenizer.encode(f"\n{_open_turn(FEEDBACK)}"),
        ]
    return Episode(steps=steps, answers=answers, reward=task.judge(answers[-1]))


def _open_turn(words: str) -> str:
    return f"<|im_start|>user\n{words}{END}\n<|im_start|>assistant\n"
