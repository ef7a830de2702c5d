"""What goes through the model at once: samples that share what they begin with, up to a number of tokens.

Axes: N completion tokens of the samples of a micro-batch, sample by sample. Pure in its input, so every rank finds the
same plan; knows nothing of models or losses.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from apps.core.contracts.training import TrainSample
from worker.trainer.tries import Targets, Trie, count_shared, pack

FILLER_TOKEN = 0
N_BUDGETS = 8  # that are tried where several ranks share the work

Group = list[TrainSample]


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """The trie of some samples, their completion tokens as its targets, and what the loss knows of each; (N,) each.

    weights: in the loss. samples: whose token it is, as in segments.py.
    """

    trie: Trie
    targets: Targets
    behaviour_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    samples: Tensor

    def to(self, device: torch.device) -> "MicroBatch":
        """Return a copy whose tensors are on `device`."""
        return MicroBatch(**{name: part.to(device) for name, part in vars(self).items()})


def build_micro_batch(samples: Sequence[TrainSample], *, weights: Mapping[str, float]) -> MicroBatch:
    """Return the tensors of one group (not empty). `weights`: of a token of each sample, by step id."""
    trie, paths = pack([_computed_ids(sample) for sample in samples])
    n_tokens = torch.tensor([len(sample.completion_ids) for sample in samples])
    return MicroBatch(
        trie=trie,
        targets=_find_targets(samples, paths),
        behaviour_logprobs=torch.tensor([logprob for sample in samples for logprob in sample.logprobs]),
        advantages=torch.tensor([sample.advantage for sample in samples]).repeat_interleave(n_tokens),
        weights=torch.tensor([weights[sample.step_id] for sample in samples]).repeat_interleave(n_tokens),
        samples=torch.arange(len(samples)).repeat_interleave(n_tokens),
    )


def build_filler() -> MicroBatch:
    """Return a micro-batch that asks for nothing: a rank with less work keeps step with the others and adds nothing."""
    trie, _ = pack([[FILLER_TOKEN]])
    nothing, none = torch.zeros(0), torch.zeros(0, dtype=torch.long)
    return MicroBatch(
        trie=trie,
        targets=Targets(nodes=none, temperatures=nothing, rows=none, token_ids=none),
        behaviour_logprobs=nothing,
        advantages=nothing,
        weights=nothing,
        samples=none,
    )


def _find_targets(samples: Sequence[TrainSample], paths: Sequence[Sequence[int]]) -> Targets:
    asked: dict[tuple[int, float], int] = {}
    rows = []
    for sample, path in zip(samples, paths, strict=True):
        nodes = path[len(sample.prompt_ids) - 1 :]  # before each completion token
        rows += [asked.setdefault((node, sample.temperature), len(asked)) for node in nodes]
    return Targets(
        nodes=torch.tensor([node for node, _ in asked]),
        temperatures=torch.tensor([temperature for _, temperature in asked]),
        rows=torch.tensor(rows),
        token_ids=torch.tensor([token for sample in samples for token in sample.completion_ids]),
    )


def plan_micro_batches(samples: Sequence[TrainSample], *, max_tokens: int, n_ranks: int) -> list[list[Group]]:
    """Return for each rank its groups of samples; all get the same number of groups (a short one gets empty ones).

    A group computes at most `max_tokens` nodes; a single longer sample goes alone. What two groups share is computed
    in both, so cuts are made where neighbours share least, and several ranks get smaller groups than there is room for
    only where they finish sooner so.
    """
    ordered = sorted(samples, key=_computed_ids)  # as in the trie: each shares most with its neighbours
    sequences = [_computed_ids(sample) for sample in ordered]
    lengths = [len(sequence) for sequence in sequences]
    shared = [0, *(count_shared(one, other) for one, other in pairwise(sequences))]
    total = sum(lengths) - sum(shared)
    most = min(max_tokens, total)
    ratio = min(1.0, total / n_ranks / most)
    budgets = [most * ratio ** (number / N_BUDGETS) for number in range(N_BUDGETS + 1 if n_ranks > 1 else 1)]
    plans = [_deal(_cut(lengths, shared, max_tokens=math.ceil(budget)), n_ranks=n_ranks) for budget in budgets]
    best = min(plans, key=_estimate_duration)
    return [[ordered[cut.start : cut.stop] for cut in cuts] for cuts in best]


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """Samples start .. stop - 1 of the ordered ones, and how many nodes they have; none without samples."""

    start: int = 0
    stop: int = 0
    n_nodes: int = 0


def _computed_ids(sample: TrainSample) -> tuple[int, ...]:
    """Return all tokens but the last, which predicts nothing."""
    return (*sample.prompt_ids, *sample.completion_ids)[:-1]


def _cut(lengths: Sequence[int], shared: Sequence[int], *, max_tokens: int) -> list[_Cut]:
    """Return the cuts with which least is computed in all and, of those, the fewest; `shared`: with the one before."""
    best = [(0, 0, _Cut())]  # for the first samples, 0 to all: nodes, cuts, the last cut
    for stop in range(1, len(lengths) + 1):
        options: list[tuple[int, int, _Cut]] = []
        n_behind = 0  # what the samples behind `start` add
        for start in reversed(range(stop)):
            n_nodes = lengths[start] + n_behind
            if options and n_nodes > max_tokens:
                break
            cut = _Cut(start=start, stop=stop, n_nodes=n_nodes)
            options.append((best[start][0] + n_nodes, best[start][1] + 1, cut))
            n_behind += lengths[start] - shared[start]
        best.append(min(options, key=lambda option: option[:2]))
    cuts: list[_Cut] = []
    while (left := cuts[-1].start if cuts else len(lengths)) > 0:
        cuts.append(best[left][2])
    return cuts[::-1]


def _deal(cuts: Sequence[_Cut], *, n_ranks: int) -> list[list[_Cut]]:
    """Deal the largest first: what the ranks work on at the same time is of like size."""
    ordered = sorted(cuts, key=lambda cut: cut.n_nodes, reverse=True)
    ordered += [_Cut()] * (-len(ordered) % n_ranks)
    return [ordered[rank::n_ranks] for rank in range(n_ranks)]


def _estimate_duration(plan: Sequence[Sequence[_Cut]]) -> int:
    """Return the nodes that the ranks wait for: at each turn those of the largest."""
    return sum(max(cut.n_nodes for cut in turn) for turn in zip(*plan, strict=True))
