"""A small real task: sort digits. A tiny model is taught it badly, with and without a hint before its eyes.

Tokens: ten digits, then the marks below. A prompt is BEGIN d d d d ASK; the answer is the digits in order, then END.
With a hint the prompt is BEGIN HINT s s s s BEGIN d d d d ASK, s being the answer. Knows torch and transformers;
knows nothing of recipes.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

BEGIN, ASK, HINT, END = 10, 11, 12, 13
VOCABULARY = 16
N_DIGITS = 4
N_ANSWER = N_DIGITS + 1


@dataclass(frozen=True, kw_only=True)
class Puzzle:
    """Digits to sort."""

    digits: tuple[int, ...]

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return (BEGIN, *self.digits, ASK)

    @property
    def hinted_ids(self) -> tuple[int, ...]:
        return (BEGIN, HINT, *sorted(self.digits), *self.prompt_ids)

    @property
    def answer_ids(self) -> tuple[int, ...]:
        return (*sorted(self.digits), END)

    def reward(self, answer_ids: Sequence[int]) -> float:
        """Return 1 for the right answer, else half the share of places that are right."""
        right = sum(one == other for one, other in zip(answer_ids, self.answer_ids, strict=False))
        return 1.0 if tuple(answer_ids) == self.answer_ids else right / N_ANSWER / 2


def draw_puzzles(n: int, *, chance: random.Random) -> list[Puzzle]:
    """Return `n` different puzzles: by chance no two tries are at one prompt."""
    numbers = chance.sample(range(10**N_DIGITS), n)
    return [Puzzle(digits=tuple(int(digit) for digit in f"{number:0{N_DIGITS}}")) for number in numbers]


def teach_badly(folder: Path, *, n_steps: int) -> None:
    """Write a tiny Llama that has seen `n_steps` batches of answers: it gets some of them right."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=BEGIN,
        eos_token_id=END,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    chance = random.Random("teaching")
    for number in range(n_steps):
        puzzles = draw_puzzles(64, chance=chance)
        prompts = [puzzle.hinted_ids if number % 4 else puzzle.prompt_ids for puzzle in puzzles]
        ids = torch.tensor([[*prompt, *puzzle.answer_ids] for prompt, puzzle in zip(prompts, puzzles, strict=True)])
        logits = model(input_ids=ids[:, :-1]).logits[:, -N_ANSWER:]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, -N_ANSWER:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)


@dataclass(frozen=True, kw_only=True)
class Try:
    """A sampled answer with the log-probs at which it was sampled (temperature 1), and its reward."""

    puzzle: Puzzle
    answer_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reward: float


def play(model: Any, puzzles: Sequence[Puzzle]) -> list[Try]:
    """Sample an answer to each puzzle, all at once."""
    ids = torch.tensor([puzzle.prompt_ids for puzzle in puzzles])
    logprobs: list[Tensor] = []
    with torch.no_grad():
        for _ in range(N_ANSWER):
            distribution = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[:, -1].float(), -1)
            drawn = torch.multinomial(distribution.exp(), 1)
            logprobs.append(distribution.gather(-1, drawn))
            ids = torch.cat([ids, drawn], dim=1)
    told = torch.cat(logprobs, dim=1).tolist()
    return [_cut(puzzle, row[-N_ANSWER:], said) for puzzle, row, said in zip(puzzles, ids.tolist(), told, strict=True)]


def _cut(puzzle: Puzzle, answer: list[int], logprobs: list[float]) -> Try:
    n_tokens = answer.index(END) + 1 if END in answer else len(answer)
    kept = tuple(answer[:n_tokens])
    return Try(puzzle=puzzle, answer_ids=kept, logprobs=tuple(logprobs[:n_tokens]), reward=puzzle.reward(kept))
