"""What a loss measured: totals over tokens, added up over micro-batches, ranks and optimizer steps, then divided."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LossSums:
    """Totals over tokens (scalars, float64, without gradient); see `summarise` for what they become.

    `loss`, `value_loss` and `teacher_kl` are the weighted sums that were made small, not sums over tokens. `ratio` is
    that to the policy that sampled.
    """

    n_tokens: Tensor
    loss: Tensor
    ratio: Tensor
    ratio_squared: Tensor
    ratio_max: Tensor
    kl: Tensor
    clipped: Tensor
    masked: Tensor
    reference_kl: Tensor
    entropy: Tensor
    logprob_diff: Tensor
    value_loss: Tensor
    teacher_kl: Tensor


LARGEST = "ratio_max"  # the others are added up


def combine(parts: Sequence[LossSums]) -> LossSums:
    """Return the totals of several parts."""
    totals = {}
    for field in fields(LossSums):
        values = torch.stack([getattr(part, field.name) for part in parts])
        totals[field.name] = values.max() if field.name == LARGEST else values.sum()
    return LossSums(**totals)


def effective_sample_size(sums: LossSums) -> float:
    """Return (sum rho)^2 / (n sum rho^2), from 0 to 1, 1 when all ratios are equal.

    Kish 1965; as a guard in VCPO, arXiv 2602.17616.
    """
    ratio = float(sums.ratio)
    return ratio * ratio / (float(sums.n_tokens) * float(sums.ratio_squared))


def summarise(sums: LossSums, *, n_optimizer_steps: int) -> dict[str, float]:
    """Return the mean loss of an optimizer step, means over tokens, the largest ratio, and the effective size."""
    n_tokens = float(sums.n_tokens)
    return {
        "loss": float(sums.loss) / n_optimizer_steps,
        "kl": float(sums.kl) / n_tokens,
        "ratio_mean": float(sums.ratio) / n_tokens,
        "ratio_max": float(sums.ratio_max),
        "clip_fraction": float(sums.clipped) / n_tokens,
        "masked_fraction": float(sums.masked) / n_tokens,
        "reference_kl": float(sums.reference_kl) / n_tokens,
        "ess": effective_sample_size(sums),
        "entropy": float(sums.entropy) / n_tokens,
    }


def k2(log_ratio: Tensor) -> Tensor:
    """Return (log r)^2 / 2 per token; as a loss its gradient is that of the reverse KL divergence.

    Schulman, "Approximating KL divergence" (2020).
    """
    return log_ratio.square() / 2


def k3(log_ratio: Tensor) -> Tensor:
    """Return r - 1 - log r per token, never negative: an unbiased estimate of KL(p || q) for tokens sampled from p.

    log_ratio = l_q - l_p. Schulman, "Approximating KL divergence" (2020).
    """
    return log_ratio.exp() - 1 - log_ratio
