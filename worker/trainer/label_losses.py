"""Losses on labels: pure functions of how likely whole answers are. Axes: J judged, P pairs of them.

h = sum over the tokens of what was judged of l_pi - l_ref, ref being the base model. Each loss is a mean over what was
judged or compared; docs/sources.md names the papers. This module knows nothing of models, tokens or processes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from apps.core.contracts.training import LossSettings


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """What a loss on labels is computed from. Only `log_ratios` (h) has a gradient.

    (J,) each: log_ratios; n_tokens of the answers; is_good (bool); drift: what h would be of any other answer, KTO's z.
    chosen, rejected (P,), int64: the places of the two of each pair, empty where nothing was compared. level: the
    running mean of beta h, BCO's delta.
    """

    log_ratios: Tensor
    n_tokens: Tensor
    is_good: Tensor
    chosen: Tensor
    rejected: Tensor
    drift: Tensor
    level: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LabelLoss:
    """Each pair's or each judged one's own loss, (P,) or (J,); and what it has to be told."""

    values: Callable[[Verdicts, LossSettings], Tensor]
    needs_reference: bool = True
    needs_drift: bool = False
    needs_level: bool = False


def label_loss(verdicts: Verdicts, loss: LossSettings) -> Tensor:
    """Return the scalar that is made small, with a gradient."""
    values: Tensor = LABEL_LOSSES[loss.kind].values(verdicts, loss).mean()
    return values


def _dpo(verdicts: Verdicts, loss: LossSettings) -> Tensor:
    """-log sigmoid(beta (h_w - h_l)): DPO (arXiv 2305.18290), eq. 7."""
    return -logsigmoid(loss.beta * _margins(verdicts))


def _robust_dpo(verdicts: Verdicts, loss: LossSettings) -> Tensor:
    """[(1 - e) L(w, l) - e L(l, w)] / (1 - 2 e), e the share of labels that are wrong: arXiv 2403.00409, eq. 12."""
    margins, noise = loss.beta * _margins(verdicts), loss.label_noise
    return (-(1 - noise) * logsigmoid(margins) + noise * logsigmoid(-margins)) / (1 - 2 * noise)


def _ipo(verdicts: Verdicts, loss: LossSettings) -> Tensor:
    """(h_w - h_l - 1 / (2 beta))^2, h by token: IPO (arXiv 2310.12036), eq. 17, normalised as its authors do."""
    by_token = verdicts.log_ratios / verdicts.n_tokens
    return (by_token[verdicts.chosen] - by_token[verdicts.rejected] - 1 / (2 * loss.beta)).square()


def _kto(verdicts: Verdicts, loss: LossSettings) -> Tensor:
    """lambda (1 - sigmoid(+-beta (h - z))), + for good ones: KTO (arXiv 2402.01306), eq. 7-8."""
    gains = loss.beta * (verdicts.log_ratios - verdicts.drift)
    return _by_verdict(verdicts, loss, 1 - torch.sigmoid(gains), 1 - torch.sigmoid(-gains))


def _apo_zero(verdicts: Verdicts, loss: LossSettings) -> Tensor:
    """Good 1 - sigmoid(beta h), bad sigmoid(beta h): APO-zero (arXiv 2408.06266), eq. 7, each on its own."""
    liking = torch.sigmoid(loss.beta * verdicts.log_ratios)
    return _by_verdict(verdicts, loss, 1 - liking, liking)


def _bco(verdicts: Verdicts, loss: LossSettings) -> Tensor:
    """Good -log sigmoid(beta h - delta), bad -log sigmoid(-(beta h - delta)): BCO (arXiv 2404.04656), eq. 9."""
    rewards = loss.beta * verdicts.log_ratios - verdicts.level
    return _by_verdict(verdicts, loss, -logsigmoid(rewards), -logsigmoid(-rewards))


def _bradley_terry(verdicts: Verdicts, _loss: LossSettings) -> Tensor:
    """-log sigmoid(s_w - s_l), s a reward model's scores in place of h: InstructGPT (arXiv 2203.02155), eq. 1."""
    return -logsigmoid(_margins(verdicts))


def _margins(verdicts: Verdicts) -> Tensor:
    return verdicts.log_ratios[verdicts.chosen] - verdicts.log_ratios[verdicts.rejected]


def _by_verdict(verdicts: Verdicts, loss: LossSettings, good: Tensor, bad: Tensor) -> Tensor:
    return torch.where(verdicts.is_good, loss.good_weight * good, loss.bad_weight * bad)


LABEL_LOSSES: Mapping[str, LabelLoss] = {
    "dpo": LabelLoss(values=_dpo),
    "robust_dpo": LabelLoss(values=_robust_dpo),
    "ipo": LabelLoss(values=_ipo),
    "kto": LabelLoss(values=_kto, needs_drift=True),
    "apo_zero": LabelLoss(values=_apo_zero),
    "bco": LabelLoss(values=_bco, needs_level=True),
    "bradley_terry": LabelLoss(values=_bradley_terry, needs_reference=False),
}
