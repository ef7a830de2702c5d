"""DeepSpeed's engine as far as steps need it, in the process of the test: gradients stay where they are."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class PlainEngine:
    """Computes, and keeps the gradient of what was made small; `step` changes nothing."""

    def __init__(self, policy: Any) -> None:
        self.module = policy
        self.optimizer = SimpleNamespace(param_groups=[{}])

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """All is one process."""

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        """Leave the weights as they are."""

    def gradients(self) -> dict[str, Tensor]:
        """Return what was added up since the last call."""
        found = {name: p.grad.clone() for name, p in self.module.named_parameters() if p.grad is not None}
        self.module.zero_grad()
        return found


def largest_gap(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the largest difference, as a fraction of the largest entry."""
    assert one.keys() == other.keys()
    scale = max(float(gradient.abs().max()) for gradient in one.values())
    assert scale > 0
    return max(float((one[name] - other[name]).abs().max()) for name in one) / scale


def no_grad(function: Any) -> Any:
    """Return what the function returns, computed without gradients."""
    with torch.no_grad():
        return function()
