"""Sums over the tokens of each sample of a micro-batch. Axes: N completion tokens of all samples, S samples.

`samples` (N,), int64, says which sample a token belongs to: 0 to S - 1 in order, each at least once.
"""

import torch
from torch import Tensor


def segment_sum(values: Tensor, samples: Tensor) -> Tensor:
    """Return for each token (N,) the sum of `values` (N,) over its sample."""
    return _add_up(values, samples)[samples]


def segment_mean(values: Tensor, samples: Tensor) -> Tensor:
    """Return for each token (N,) the mean of `values` (N,) over its sample."""
    return (_add_up(values, samples) / _add_up(torch.ones_like(values), samples))[samples]


def _add_up(values: Tensor, samples: Tensor) -> Tensor:
    n_samples = int(samples[-1]) + 1 if len(samples) else 0
    return values.new_zeros(n_samples).index_add(0, samples, values)  # (S,)
