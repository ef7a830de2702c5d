"""Verdicts for the tests of the losses on labels."""

from typing import Any

import torch

from worker.trainer.label_losses import Verdicts


def make_verdicts(good: list[float], bad: list[float], *, n_tokens: int = 1, **changes: Any) -> Verdicts:
    """Log-ratios h of good answers, then of bad ones; the first of each are a pair, the second too, and so on."""
    n_pairs = min(len(good), len(bad))
    log_ratios = torch.tensor(good + bad, dtype=torch.float64)
    settings: dict[str, Any] = {
        "log_ratios": log_ratios.requires_grad_(),
        "n_tokens": torch.full((len(log_ratios),), n_tokens),
        "is_good": torch.arange(len(log_ratios)) < len(good),
        "chosen": torch.arange(n_pairs),
        "rejected": torch.arange(n_pairs) + len(good),
        "drift": torch.zeros_like(log_ratios),
    }
    return Verdicts(**{**settings, **changes})
