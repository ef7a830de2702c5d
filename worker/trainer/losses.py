"""Losses and their measures: pure functions of tensors. Axes: B samples, K completion positions, V vocabulary.

Every formula names its source; docs/sources.md lists them. This module knows nothing of models, batches of tokens,
processes or optimizers. A loss returns a *sum* over its tokens divided by a count that the caller gives, so that the
result is the mean over the whole optimizer step however its samples were cut into micro-batches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """`loss` is a scalar with a gradient; `sums` are totals over the masked tokens, to be added up and then divided."""

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
    """Return log-probs of `token_ids` and entropies, both (B, K), in nats at each sample's own sampling temperature.

    logits (B, K, V), token_ids (B, K), temperatures (B,). Entropies carry no gradient.
    """
    scaled = logits.float() / temperatures[:, None, None]  # (B, K, V)
    distribution = torch.log_softmax(scaled, dim=-1)  # (B, K, V)
    chosen = distribution.gather(-1, token_ids[..., None]).squeeze(-1)  # (B, K)
    fixed = distribution.detach()
    return chosen, -(fixed.exp() * fixed).sum(-1)


def clipped_policy_loss(  # noqa: PLR0913  the formula has this many symbols
    logprobs: Tensor,
    behaviour_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    entropies: Tensor,
    clip_low: float,
    clip_high: float,
    n_tokens_total: float,
) -> PolicyLoss:
    """PPO's clipped surrogate (arXiv 1707.06347, eq. 7) with DAPO's asymmetric range and token mean (2503.14476).

        rho = exp(l_pi - l_mu);  loss = - sum_t min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) / n_tokens_total

    mu is the policy that sampled, as the engine reported it, so rho corrects both for staleness and for the gap between
    engine and trainer. logprobs, behaviour_logprobs, mask, entropies (B, K); advantages (B,).
    """
    log_ratio = torch.where(mask, logprobs - behaviour_logprobs, 0.0)  # (B, K)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    gains = advantages[:, None]
    per_token = torch.where(mask, -torch.minimum(ratio * gains, clipped * gains), 0.0)
    is_clipped = torch.where(gains > 0, ratio > 1 + clip_high, (ratio < 1 - clip_low) & (gains < 0))
    sums = _add_up(mask, per_token=per_token, log_ratio=log_ratio, is_clipped=is_clipped, entropies=entropies)
    return PolicyLoss(loss=per_token.sum() / n_tokens_total, sums=sums)


def _add_up(mask: Tensor, *, per_token: Tensor, log_ratio: Tensor, is_clipped: Tensor, entropies: Tensor) -> LossSums:
    with torch.no_grad():
        log_ratio = log_ratio[mask].double()  # (N,)
        ratio = log_ratio.exp()
        highest = ratio.max() if ratio.numel() else torch.zeros((), dtype=torch.float64, device=mask.device)
        return LossSums(
            n_tokens=mask.sum().double(),
            loss=per_token.detach().double().sum(),
            ratio=ratio.sum(),
            ratio_squared=ratio.square().sum(),
            ratio_max=highest,
            kl=k3(log_ratio).sum(),
            clipped=is_clipped[mask].double().sum(),
            entropy=entropies[mask].double().sum(),
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
