"""Policy losses: pure functions of tensors. Axes: N completion tokens of all samples, S samples, V vocabulary.

Every formula names its source; docs/sources.md lists them. This module knows nothing of models, batches of tokens,
processes or optimizers. A loss is a weighted *sum* over its tokens (aggregation.py says how they are weighed), so that
parts of an optimizer step add up however it was cut into micro-batches.

r = exp(l_pi - l_prox) is the ratio of the policy in training to that at the start of the step or, where no correction
asks for it, to the policy mu that sampled: rho = exp(l_pi - l_mu), which corrects both for staleness and for the gap
between engine and trainer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from apps.core.contracts.training import LossSettings
from worker.trainer.corrections import Drift, weigh_tokens
from worker.trainer.measures import LossSums, k2, k3
from worker.trainer.segments import segment_mean


@dataclass(frozen=True, kw_only=True)
class PolicyTokens:
    """What a policy loss is computed from; (N,) each. Only `logprobs` has a gradient.

    `behaviour`: l_mu. `proximal`: l_prox, or l_mu where no correction needs it. `reference`: of the base model, or None
    where the recipe does not ask for it. `samples`: as in segments.py.
    """

    logprobs: Tensor
    behaviour: Tensor
    proximal: Tensor
    advantages: Tensor
    weights: Tensor
    samples: Tensor
    entropies: Tensor
    reference: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """`loss` is a scalar with a gradient; `sums` are totals over the tokens."""

    loss: Tensor
    sums: LossSums


@dataclass(frozen=True, kw_only=True)
class TokenLoss:
    """Each token's own loss, and whether its bound took its gradient away; (N,)."""

    values: Tensor
    is_clipped: Tensor


def policy_loss(tokens: PolicyTokens, loss: LossSettings) -> PolicyLoss:
    """Return the weighted sum over the tokens of correction x loss (+ coefficient x KL to the base model).

    Raises ValueError when the recipe compares with the base model and `tokens` has no log-probs of it.
    """
    log_ratios = (tokens.logprobs - tokens.behaviour).detach()
    corrections = weigh_tokens(
        Drift(
            log_weights=tokens.proximal - tokens.behaviour,
            log_ratios=log_ratios,
            advantages=tokens.advantages,
            samples=tokens.samples,
        ),
        loss,
    )
    by_token = LOSSES[loss.kind](tokens, loss)
    values = corrections * by_token.values
    if loss.kl in KL_LOSSES:
        if tokens.reference is None:
            raise ValueError(f"the loss {loss.kl} needs log-probs of the base model")
        values = values + loss.kl_coefficient * KL_LOSSES[loss.kl](tokens.reference - tokens.logprobs)
    total = (tokens.weights * values).sum()
    return PolicyLoss(loss=total, sums=_add_up(tokens, total, corrections=corrections, is_clipped=by_token.is_clipped))


def _add_up(tokens: PolicyTokens, total: Tensor, *, corrections: Tensor, is_clipped: Tensor) -> LossSums:
    log_ratio = (tokens.logprobs - tokens.behaviour).detach().double()
    ratio = log_ratio.exp()
    has_reference = tokens.reference is not None
    to_reference = (tokens.reference - tokens.logprobs).detach().double() if has_reference else torch.zeros_like(ratio)
    return LossSums(
        n_tokens=torch.tensor(float(len(ratio)), dtype=torch.float64, device=ratio.device),
        loss=total.detach().double(),
        ratio=ratio.sum(),
        ratio_squared=ratio.square().sum(),
        ratio_max=ratio.max() if len(ratio) else ratio.sum(),
        kl=k3(log_ratio).sum(),
        clipped=is_clipped.double().sum(),
        masked=(corrections == 0).double().sum(),
        reference_kl=k3(to_reference).sum(),
        entropy=tokens.entropies.double().sum(),
        logprob_diff=log_ratio.abs().sum(),
        value_loss=torch.zeros_like(ratio.sum()),
        teacher_kl=torch.zeros_like(ratio.sum()),
    )


def _ppo(tokens: PolicyTokens, loss: LossSettings) -> TokenLoss:
    """-min(r A, clip(r, 1 - low, 1 + high) A): PPO (arXiv 1707.06347), eq. 7, with the range of DAPO (2503.14476)."""
    return _clip((tokens.logprobs - tokens.proximal).exp(), tokens.advantages, loss)


def _dual_clip(tokens: PolicyTokens, loss: LossSettings) -> TokenLoss:
    """PPO, and where A < 0 never more than c |A|: dual clip (arXiv 1912.09729)."""
    once = _ppo(tokens, loss)
    ceiling = -loss.dual_clip * tokens.advantages
    is_above = (tokens.advantages < 0) & (once.values > ceiling)
    return TokenLoss(values=torch.where(is_above, ceiling, once.values), is_clipped=once.is_clipped | is_above)


def _gspo(tokens: PolicyTokens, loss: LossSettings) -> TokenLoss:
    """PPO with the sequence's s = exp(mean_t log r) in place of a token's ratio: GSPO (arXiv 2507.18071), eq. 5-7."""
    ratios = segment_mean(tokens.logprobs - tokens.proximal, tokens.samples).exp()
    return _clip(ratios, tokens.advantages, loss)


def _clip(ratios: Tensor, advantages: Tensor, loss: LossSettings) -> TokenLoss:
    low, high = 1 - loss.clip_low, 1 + loss.clip_high
    values = -torch.minimum(ratios * advantages, ratios.clamp(low, high) * advantages)
    is_clipped = torch.where(advantages > 0, ratios > high, (ratios < low) & (advantages < 0))
    return TokenLoss(values=values, is_clipped=is_clipped)


def _cispo(tokens: PolicyTokens, loss: LossSettings) -> TokenLoss:
    """-sg(min(r, c)) A l_pi: weights are clipped, never gradients. CISPO (MiniMax-M1, arXiv 2506.13585), eq. 4-5."""
    ratios = (tokens.logprobs - tokens.proximal).exp().detach()
    values = -ratios.clamp(max=loss.ratio_cap) * tokens.advantages * tokens.logprobs
    return TokenLoss(values=values, is_clipped=ratios > loss.ratio_cap)


def _sapo(tokens: PolicyTokens, loss: LossSettings) -> TokenLoss:
    """-A (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A: SAPO (arXiv 2511.20347). Nothing is cut off."""
    ratios = (tokens.logprobs - tokens.proximal).exp()
    is_good = tokens.advantages > 0
    taus = torch.where(is_good, loss.tau_positive, loss.tau_negative)
    values = -tokens.advantages * 4 / taus * torch.sigmoid(taus * (ratios - 1))
    return TokenLoss(values=values, is_clipped=torch.zeros_like(is_good))


def _dppo_tv(tokens: PolicyTokens, loss: LossSettings) -> TokenLoss:
    """-rho A, unless p is further than d from p_mu in the direction that A pushes: DPPO-TV (arXiv 2602.04879)."""
    ratios = (tokens.logprobs - tokens.behaviour).exp()
    moved = (tokens.logprobs.exp() - tokens.behaviour.exp()).detach()
    is_beyond = torch.where(tokens.advantages > 0, moved > loss.divergence_cap, moved < -loss.divergence_cap)
    return TokenLoss(values=-ratios * tokens.advantages * ~is_beyond, is_clipped=is_beyond)


LOSSES: Mapping[str, Callable[[PolicyTokens, LossSettings], TokenLoss]] = {
    "ppo": _ppo,
    "dual_clip": _dual_clip,
    "gspo": _gspo,
    "cispo": _cispo,
    "sapo": _sapo,
    "dppo_tv": _dppo_tv,
}
KL_LOSSES: Mapping[str, Callable[[Tensor], Tensor]] = {"k2_loss": k2, "k3_loss": k3}
