"""Sequences that begin alike, packed so that each token they share is computed once.

Axes: T nodes of a trie. Its roots may be many: sequences that share nothing stand side by side. Knows nothing of
samples, losses or models; how a model looks along a path is in trie_attention.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

# Two sequences that part after less, in tokens or against what follows, are cheaper computed apart (decision 20).
MIN_SHARED_TOKENS = 16
MIN_SHARED_PART = 1 / 16


@dataclass(frozen=True, kw_only=True)
class Trie:
    """T nodes, a token each, depth first: behind a node lies all that follows it, then the rest.

    token_ids (T,). depths (T,): how many ancestors a node has, which is its position in its sequences. ends (T,): the
    first node behind all that follow it; so j is i or an ancestor of i exactly where j <= i < ends[j].
    """

    token_ids: Tensor
    depths: Tensor
    ends: Tensor

    def to(self, device: torch.device) -> "Trie":
        """Return a copy on `device`."""
        return Trie(**{name: tensor.to(device) for name, tensor in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Nodes start .. stop - 1, each the only one that follows the one before; all that follow them: stop .. end - 1."""

    start: int
    stop: int
    end: int


def count_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return with how many nodes both begin: the tokens that `other` has in common with `one`, 0 if not worth it.

    What goes on where `one` ends makes no branch, and is always worth it.
    """
    n_least = min(len(one), len(other))
    n_common = next((at for at in range(n_least) if one[at] != other[at]), n_least)
    least = max(MIN_SHARED_TOKENS, MIN_SHARED_PART * (len(other) - n_common))
    return n_common if n_common >= least or n_common == len(one) else 0


def pack(sequences: Sequence[Sequence[int]]) -> tuple[Trie, list[list[int]]]:
    """Return the trie of `sequences` (none empty) and for each of them, in their order, the nodes of its tokens."""
    token_ids: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    paths: dict[int, list[int]] = {}
    before: Sequence[int] = ()
    path: list[int] = []  # of the sequence before
    for number in sorted(range(len(sequences)), key=lambda at: tuple(sequences[at])):
        sequence = sequences[number]
        n_shared = count_shared(before, sequence)
        n_nodes = len(token_ids)
        for node in path[n_shared:]:
            ends[node] = n_nodes
        path = path[:n_shared] + list(range(n_nodes, n_nodes + len(sequence) - n_shared))
        token_ids += sequence[n_shared:]
        depths += range(n_shared, len(sequence))
        ends += [0] * (len(sequence) - n_shared)
        before, paths[number] = sequence, path
    for node in path:
        ends[node] = len(token_ids)
    trie = Trie(token_ids=torch.tensor(token_ids), depths=torch.tensor(depths), ends=torch.tensor(ends))
    return trie, [paths[number] for number in range(len(sequences))]


def find_segments(trie: Trie) -> tuple[Segment, ...]:
    """Return the runs of nodes between branches, in order."""
    is_deeper = trie.depths[1:] == trie.depths[:-1] + 1
    goes_on = is_deeper & (trie.ends[1:] == trie.ends[:-1])
    bounds = [0, *(torch.nonzero(~goes_on).flatten() + 1).tolist(), len(trie.depths)]
    ends = trie.ends.tolist()
    return tuple(Segment(start=start, stop=stop, end=ends[start]) for start, stop in pairwise(bounds))


@dataclass(frozen=True, kw_only=True)
class Targets:
    """N tokens whose log-probs are asked for, each of the node before it.

    nodes (R,), temperatures (R,): where the model's output is computed, each pair once. rows (N,): which of them a
    target comes from; several come from one where paths part. token_ids (N,).
    """

    nodes: Tensor
    temperatures: Tensor
    rows: Tensor
    token_ids: Tensor

    def to(self, device: torch.device) -> "Targets":
        """Return a copy on `device`."""
        return Targets(**{name: tensor.to(device) for name, tensor in vars(self).items()})
