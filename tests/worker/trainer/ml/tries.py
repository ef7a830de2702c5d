"""Random tries for Hypothesis, and what they are checked against."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from worker.trainer.tries import Trie

Sequences = list[tuple[int, ...]]


def draw_sequences(*, n_most: int = 8, longest: int = 12) -> st.SearchStrategy[Sequences]:
    """Sequences over so few tokens that they share a lot, one is often the beginning of another, and some are equal."""
    tokens = st.integers(1, 3)
    return st.lists(st.lists(tokens, min_size=1, max_size=longest).map(tuple), min_size=1, max_size=n_most)


def dense_mask(trie: Trie) -> Tensor:
    """Who sees whom, (T, T), by the definition of an ancestor."""
    mask = torch.zeros(len(trie.depths), len(trie.depths), dtype=torch.bool)
    path: list[int] = []
    for node, depth in enumerate(trie.depths.tolist()):
        path = [*path[:depth], node]
        mask[node, path] = True
    return mask
