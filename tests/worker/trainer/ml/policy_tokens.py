"""Tokens for the losses' tests: two-dimensional tables with a mask, as papers and TRL have them, and our flat form."""

from typing import Any

import torch
from torch import Tensor

from apps.core.contracts.training import LossSettings
from worker.trainer.losses import PolicyLoss, PolicyTokens, policy_loss


def make_tokens(ratios: list[float], advantages: list[float], **changes: Any) -> PolicyTokens:
    """Tokens of one sample each with the weight 1, whose policy is `ratios` times as likely as mu's exp(-2)."""
    behaviour = torch.full((len(ratios),), -2.0, dtype=torch.float64)
    settings: dict[str, Any] = {
        "logprobs": behaviour + torch.tensor(ratios, dtype=torch.float64).log(),
        "behaviour": behaviour,
        "proximal": behaviour,
        "advantages": torch.tensor(advantages, dtype=torch.float64),
        "weights": torch.ones_like(behaviour),
        "samples": torch.arange(len(ratios)),
        "entropies": torch.ones_like(behaviour),
    }
    return PolicyTokens(**{**settings, **changes})


def compute(ratios: list[float], advantages: list[float], *, loss: LossSettings, **changes: Any) -> PolicyLoss:
    """The loss of such tokens."""
    return policy_loss(make_tokens(ratios, advantages, **changes), loss)


def token_weights(mask: Tensor, aggregation: str, *, constant: int) -> Tensor:
    """What aggregation.py says, on a table; (B, T) to (N,)."""
    lengths = mask.sum(-1, keepdim=True)
    by_row = {
        "token_mean": torch.full(lengths.shape, 1 / float(mask.sum())),
        "sequence_mean": 1 / (lengths * len(mask)),
        "constant": torch.full(lengths.shape, 1 / (constant * len(mask))),
    }[aggregation]
    return by_row.expand(mask.shape)[mask]


def flatten(table: dict[str, Tensor], mask: Tensor, *, weights: Tensor) -> PolicyTokens:
    """Our flat form of tables (B, T) and of advantages (B,)."""
    rows = torch.arange(len(mask))[:, None].expand(mask.shape)[mask]
    return PolicyTokens(
        logprobs=table["logprobs"][mask],
        behaviour=table["behaviour"][mask],
        proximal=table["proximal"][mask],
        advantages=table["advantages"][rows],
        weights=weights,
        samples=rows,
        entropies=torch.zeros(int(mask.sum())),
        reference=table["reference"][mask] if "reference" in table else None,
    )
