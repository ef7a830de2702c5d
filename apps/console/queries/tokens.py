"""The token view of a step: its sampled tokens, coloured by how likely each was or by how undecided a version was
before it, and what of them is trained on.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass

from apps.core.contracts.arrays import unpack_ids, unpack_logprobs
from apps.core.errors import ServiceError
from apps.registry.client import TOP_LOGPROBS
from apps.registry.entropies import find_scorer, read_entropies
from apps.registry.models import Version
from apps.registry.token_texts import read_token_texts
from apps.trajectories.models import ExchangeStatus, Step
from apps.trajectories.trie import load_context

TOKENS_SHOWN = 2000
PROMPT_TOKENS_SHOWN = 400  # the last of those that are new in the prompt
PROBABILITIES = (0.9, 0.7, 0.5, 0.3, 0.1, 0.02)  # at or above which a token has the level of its place
ENTROPIES = (0.1, 0.3, 0.7, 1.2, 1.8, 2.5)  # nats; from the last on a place has the last level
PROBABILITY_LEGEND = [
    *((f"≥ {least:.0%}", level) for level, least in enumerate(PROBABILITIES)),
    ("less", len(PROBABILITIES)),
]
ENTROPY_LEGEND = [*((f"< {most:g}", level) for level, most in enumerate(ENTROPIES)), ("more", len(ENTROPIES))]


@dataclass(frozen=True, kw_only=True)
class TokenCell:
    """One sampled token: its id, its text where the engine told it, its probability, the entropy of its place where
    that was asked for, and the level of its colour (None: what it is coloured by is not known)."""

    token_id: int
    text: str
    logprob: float
    probability: float
    entropy: float | None
    level: int | None


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Whose entropies these are, and what they are of; `error` says why some or all are missing."""

    version: Version | None = None
    values: tuple[float, ...] = ()
    is_own: bool = False  # it is the version that said it
    temperature: float = 1.0
    n_likeliest: int = TOP_LOGPROBS
    error: str = ""

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)


@dataclass(frozen=True, kw_only=True)
class TokenView:
    """The sampled tokens of a step; `n_hidden` more are not shown.

    `masked` says why none of them is trained on, "" when all are. `prompt` has the last ids that are new in the prompt,
    which is never trained on; `n_prompt_hidden` stand before them. `scored` is there when they are coloured by entropy.
    """

    cells: list[TokenCell]
    prompt: list[tuple[int, str]]
    n_prompt_hidden: int
    masked: str
    n_hidden: int
    mean_logprob: float
    perplexity: float
    has_text: bool
    legend: list[tuple[str, int]]
    scored: Scored | None


def read_tokens(step: Step, *, by_entropy: bool = False) -> TokenView:
    """Return the sampled tokens with their probabilities, and their texts where the engine told them."""
    ids = unpack_ids(bytes(step.completion_token_ids))
    logprobs = unpack_logprobs(bytes(step.logprobs))
    new_ids = unpack_ids(bytes(step.tail_token_ids))
    shown_ids = new_ids[-PROMPT_TOKENS_SHOWN:]
    prompt_texts = _token_texts(step, shown_ids) or [str(token_id) for token_id in shown_ids]
    texts = _token_texts(step, ids[:TOKENS_SHOWN])
    scored = _score(step, ids[:TOKENS_SHOWN]) if by_entropy and logprobs else None
    mean = sum(logprobs) / len(logprobs) if logprobs else 0.0
    return TokenView(
        cells=_read_cells(ids, logprobs, texts=texts, scored=scored),
        prompt=list(zip(shown_ids, prompt_texts, strict=True)),
        n_prompt_hidden=step.n_prompt_tokens - len(shown_ids),
        masked=explain_mask(step),
        n_hidden=max(0, len(ids) - TOKENS_SHOWN),
        mean_logprob=mean,
        perplexity=math.exp(min(-mean, 50.0)),
        has_text=bool(texts),
        legend=ENTROPY_LEGEND if scored else PROBABILITY_LEGEND,
        scored=scored,
    )


def explain_mask(step: Step) -> str:
    """Say why no token of the step is trained on, "" when its sampled tokens are."""
    if step.side_call:
        return "a side call"
    if step.is_excluded:
        return "kept out of training"
    if not step.is_exact:
        return "its tokens are not exact"
    if step.status != ExchangeStatus.COMPLETE:
        return "the call did not end well"
    return ""


def _score(step: Step, ids: list[int]) -> Scored:
    """The version that said it is asked, at the temperature at which it was; the live one where no engine holds it."""
    temperature = step.temperature or 1.0  # at 0 nothing is undecided
    context = load_context(step.pk)
    prompt_ids = unpack_ids(context.token_ids)[: context.n_prompt_tokens]
    try:
        version = find_scorer(step.trajectory.project_id, spoke=step.version)
    except ServiceError as error:
        return Scored(error=error.message)
    found = read_entropies(version, prompt_ids=prompt_ids, completion_ids=ids, temperature=temperature)
    return Scored(
        version=version,
        values=tuple(found.values),
        is_own=version == step.version,
        temperature=temperature,
        error=found.error,
    )


def _read_cells(ids: list[int], logprobs: list[float], *, texts: list[str], scored: Scored | None) -> list[TokenCell]:
    cells = []
    for place, (token_id, logprob) in enumerate(zip(ids[:TOKENS_SHOWN], logprobs, strict=False)):
        probability = math.exp(min(logprob, 0.0))
        entropy = scored.values[place] if scored and place < len(scored.values) else None
        text = texts[place] if texts else ""
        level = _rank_entropy(entropy) if scored else _rank_probability(probability)
        cells.append(
            TokenCell(
                token_id=token_id, text=text, logprob=logprob, probability=probability, entropy=entropy, level=level
            )
        )
    return cells


def _rank_probability(probability: float) -> int:
    return next((place for place, least in enumerate(PROBABILITIES) if probability >= least), len(PROBABILITIES))


def _rank_entropy(entropy: float | None) -> int | None:
    return None if entropy is None else bisect_right(ENTROPIES, entropy)


def _token_texts(step: Step, token_ids: list[int]) -> list[str]:
    if step.version is None:
        return []
    return read_token_texts(base_model=step.version.policy.base_model, token_ids=token_ids)
