"""Losses and their measures: pure functions of tensors. Axes: N completion tokens, V vocabulary.

Every formula names its source; docs/sources.md lists them. This module knows nothing of models, batches of tokens,
processes or optimizers. A loss returns a *sum* over its tokens divided by a count that the caller gives, so that the
result is the mean over the whole optimizer step however its samples were cut into micro-batches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """`loss` is a scalar with a gradient; `sums` are totals over the tokens, to be added up and then divided."""

    loss: Tensor
    sums: "LossSums"


@dataclass(frozen=True, kw_only=True)
class LossSums:
    """Totals over tokens (scalars, float64, without gradient); see `summarise` for what they become."""

    n_tokens: Tensor
    loss: Tensor
    ratio: Tensor
    ratio_squared: Tensor
    ratio_max: Tensor
    kl: Tensor
    clipped: Tensor
    entropy: Tensor
    logprob_diff: Tensor


def token_logprobs(logits: Tensor, token_ids: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probs of `token_ids` and entropies, both (N,), in nats at the temperature each was sampled at.

    logits (N, V), token_ids (N,), temperatures (N,). Entropies carry no gradient.
    """
    distribution = torch.log_softmax(logits.float() / temperatures[:, None], dim=-1)  # (N, V)
    chosen = distribution.gather(-1, token_ids[:, None]).squeeze(-1)  # (N,)
    fixed = distribution.detach()
    return chosen, -(fixed.exp() * fixed).sum(-1)


def clipped_policy_loss(
    logprobs: Tensor,
    behaviour_logprobs: Tensor,
    advantages: Tensor,
    *,
    entropies: Tensor,
    clip_low: float,
    clip_high: float,
    n_tokens_total: float,
) -> PolicyLoss:
    """PPO's clipped surrogate (arXiv 1707.06347, eq. 7) with DAPO's asymmetric range and token mean (2503.14476).

        rho = exp(l_pi - l_mu);  loss = - sum_t min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) / n_tokens_total

    mu is the policy that sampled, as the engine reported it, so rho corrects both for staleness and for the gap between
    engine and trainer. All tensors (N,), one entry for each completion token.
    """
    ratio = (logprobs - behaviour_logprobs).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    per_token = -torch.minimum(ratio * advantages, clipped * advantages)
    is_clipped = torch.where(advantages > 0, ratio > 1 + clip_high, (ratio < 1 - clip_low) & (advantages < 0))
    log_ratio = (logprobs - behaviour_logprobs).detach().double()
    sums = _add_up(per_token.detach(), log_ratio=log_ratio, is_clipped=is_clipped, entropies=entropies)
    return PolicyLoss(loss=per_token.sum() / n_tokens_total, sums=sums)


def _add_up(per_token: Tensor, *, log_ratio: Tensor, is_clipped: Tensor, entropies: Tensor) -> LossSums:
    ratio = log_ratio.exp()
    return LossSums(
        n_tokens=torch.tensor(float(len(ratio)), dtype=torch.float64, device=ratio.device),
        loss=per_token.double().sum(),
        ratio=ratio.sum(),
        ratio_squared=ratio.square().sum(),
        ratio_max=ratio.max() if len(ratio) else ratio.sum(),
        kl=k3(log_ratio).sum(),
        clipped=is_clipped.double().sum(),
        entropy=entropies.double().sum(),
        logprob_diff=log_ratio.abs().sum(),
    )


def k3(log_ratio: Tensor) -> Tensor:
    """Return the k3 estimate of KL(mu || pi) per token sampled from mu: rho - 1 - log rho, never negative.

    Schulman, "Approximating KL divergence" (2020); log_ratio = l_pi - l_mu.
    """
    return log_ratio.exp() - 1 - log_ratio


def summarise(sums: LossSums) -> dict[str, float]:
    """Return means over tokens, the largest ratio, and the effective sample size as a fraction.

    ESS = (sum rho)^2 / (n sum rho^2) (Kish 1965; used as a guard in VCPO, 2602.17616): 1 when all ratios are equal.
    """
    n_tokens = float(sums.n_tokens)
    ratio = float(sums.ratio)
    return {
        "loss": float(sums.loss) / n_tokens,
        "kl": float(sums.kl) / n_tokens,
        "ratio_mean": ratio / n_tokens,
        "ratio_max": float(sums.ratio_max),
        "clip_fraction": float(sums.clipped) / n_tokens,
        "ess": ratio * ratio / (n_tokens * float(sums.ratio_squared)),
        "entropy": float(sums.entropy) / n_tokens,
    }
