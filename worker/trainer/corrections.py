"""Off-policy corrections: how much a token counts that another policy than the one in training sampled.

mu sampled, as the engine reported it; prox is the policy at the start of the step, as the trainer computes it. With
w = exp(l_prox - l_mu), a correction is a factor without gradient on each token's loss, whose ratio is then to prox.
Without one the ratio itself is to mu, which saves a forward pass. All tensors (N,), one entry a completion token;
`samples` as in segments.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from apps.core.contracts.training import LossSettings
from worker.trainer.segments import segment_mean, segment_sum


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What a correction looks at: log w, the drift of the policy in training l_pi - l_mu, and the advantages; (N,)."""

    log_weights: Tensor
    log_ratios: Tensor
    advantages: Tensor
    samples: Tensor


@dataclass(frozen=True, kw_only=True)
class Correction:
    """A rule, and whether it needs the log-probs at the start of the step."""

    weigh: Callable[[Drift, LossSettings], Tensor]
    needs_proximal: bool = True


def weigh_tokens(drift: Drift, loss: LossSettings) -> Tensor:
    """Return the factor of each token (N,), without gradient."""
    with torch.no_grad():
        return CORRECTIONS[loss.correction].weigh(drift, loss)


def needs_proximal(loss: LossSettings) -> bool:
    """Say whether the log-probs at the start of the step are asked for."""
    return CORRECTIONS[loss.correction].needs_proximal


def _none(drift: Drift, _loss: LossSettings) -> Tensor:
    return torch.ones_like(drift.log_weights)


def _decoupled(drift: Drift, _loss: LossSettings) -> Tensor:
    """w: decoupled PPO (Hilton et al., arXiv 2110.00641; AReaL, arXiv 2505.24298)."""
    return drift.log_weights.exp()


def _tis(drift: Drift, loss: LossSettings) -> Tensor:
    """min(w, C) on each token: truncated importance sampling (Yao et al. 2025; Ionides 2008)."""
    return drift.log_weights.exp().clamp(max=loss.weight_high)


def _tis_sequence(drift: Drift, loss: LossSettings) -> Tensor:
    """min(prod w, C) on each sequence."""
    return segment_sum(drift.log_weights, drift.samples).exp().clamp(max=loss.weight_high)


def _icepop(drift: Drift, loss: LossSettings) -> Tensor:
    """w where it lies within the bounds, else 0, on each token: IcePop (arXiv 2510.18855)."""
    return _keep_within(drift.log_weights.exp(), loss)


def _mis(drift: Drift, loss: LossSettings) -> Tensor:
    """prod w where it lies within the bounds, else 0, on each sequence: masked importance sampling."""
    return _keep_within(segment_sum(drift.log_weights, drift.samples).exp(), loss)


def _geometric(drift: Drift, loss: LossSettings) -> Tensor:
    """1 where the geometric mean of w over the sequence lies within the bounds, else 0."""
    mean = segment_mean(drift.log_weights, drift.samples).exp()
    return ((mean >= loss.weight_low) & (mean <= loss.weight_high)).to(mean)


def _negative_mask(drift: Drift, loss: LossSettings) -> Tensor:
    """0 for a sequence with A < 0 and mean(l_mu - l_pi) > delta, else 1: DeepSeek-V3.2 (arXiv 2512.02556).

    Bad answers that the policy has left behind already teach nothing and make it unstable; good ones do no harm.
    """
    has_left = segment_mean(-drift.log_ratios, drift.samples) > loss.drift_cap
    return (~((drift.advantages < 0) & has_left)).to(drift.log_ratios)


def _keep_within(weights: Tensor, loss: LossSettings) -> Tensor:
    """A long sequence's weight may be infinite: it is chosen, since times 0 it would not be a number."""
    is_within = (weights >= loss.weight_low) & (weights <= loss.weight_high)
    return torch.where(is_within, weights, 0.0)


CORRECTIONS: Mapping[str, Correction] = {
    "none": Correction(weigh=_none, needs_proximal=False),
    "decoupled": Correction(weigh=_decoupled),
    "tis": Correction(weigh=_tis),
    "tis_sequence": Correction(weigh=_tis_sequence),
    "icepop": Correction(weigh=_icepop),
    "mis": Correction(weigh=_mis),
    "geometric": Correction(weigh=_geometric),
    "negative_mask": Correction(weigh=_negative_mask, needs_proximal=False),
}
