"""The batches that `bench.trainer` measures, in the shapes of the pool. Knows nothing of models."""

import random
from collections.abc import Callable, Mapping

from apps.core.contracts.training import TrainSample

VOCABULARY = 16_384
N_TURNS = 10
OPENING, ANSWER, RESULT, ASIDE = 128, 32, 96, 48  # tokens: system and task, what is sampled a turn, what comes back


def make_singles() -> list[TrainSample]:
    """8 calls of 256 tokens that share nothing, half of each sampled."""
    chance = random.Random(1)
    return [
        make_call(chance, f"single_{number}", turn=0, prompt=draw(chance, 128), answer=draw(chance, 128))
        for number in range(8)
    ]


def make_turns() -> list[TrainSample]:
    """A trajectory of ten turns; each prompt is all that came before."""
    return _converse(aside=0)


def make_turns_with_asides() -> list[TrainSample]:
    """The same, but every prompt ends with a message that the next no longer has, as OpenClaw's do."""
    return _converse(aside=ASIDE)


def make_tries() -> list[TrainSample]:
    """8 answers of 128 tokens to one prompt of 512."""
    chance = random.Random(3)
    prompt = draw(chance, 512)
    return [make_call(chance, f"try_{n}", turn=0, prompt=prompt, answer=draw(chance, 128)) for n in range(8)]


def _converse(*, aside: int) -> list[TrainSample]:
    chance = random.Random(2)
    history = draw(chance, OPENING)
    calls = []
    for turn in range(N_TURNS):
        answer = draw(chance, ANSWER)
        calls.append(make_call(chance, "turns", turn=turn, prompt=history + draw(chance, aside), answer=answer))
        history += answer + draw(chance, RESULT)
    return calls


def draw(chance: random.Random, n_tokens: int) -> tuple[int, ...]:
    """Return random tokens."""
    return tuple(chance.randrange(VOCABULARY) for _ in range(n_tokens))


def make_call(
    chance: random.Random, trajectory: str, *, turn: int, prompt: tuple[int, ...], answer: tuple[int, ...]
) -> TrainSample:
    """Return a sample; its log-probs are those of an untrained model, about."""
    return TrainSample(
        step_id=f"{trajectory}_{turn}",
        trajectory_id=trajectory,
        prompt_ids=prompt,
        completion_ids=answer,
        logprobs=tuple(-9.7 + chance.uniform(-0.1, 0.1) for _ in answer),
        advantage=chance.choice([-1.0, 1.0]),
        temperature=1.0,
    )


BATCHES: Mapping[str, Callable[[], list[TrainSample]]] = {
    "single_turn": make_singles,
    "ten_turns": make_turns,
    "ten_turns_asides": make_turns_with_asides,
    "eight_tries": make_tries,
}
