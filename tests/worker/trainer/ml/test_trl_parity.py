"""Loss and gradient of every policy loss that TRL has, against TRL's own `GRPOTrainer._compute_loss`."""

import warnings
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from apps.core.contracts.training import LossSettings
from tests.worker.trainer.ml.policy_tokens import flatten, token_weights
from worker.trainer.losses import policy_loss

MAX_LENGTH = 9
SHAPE = (4, 7)

# ours, and TRL's settings for the same
CASES: dict[str, tuple[LossSettings, dict[str, Any]]] = {
    "DAPO": (LossSettings(clip_low=0.2, clip_high=0.28), {"loss_type": "dapo", "epsilon_high": 0.28}),
    "GRPO": (LossSettings(clip_high=0.2, aggregation="sequence_mean"), {"loss_type": "grpo"}),
    "Dr.GRPO": (
        LossSettings(clip_high=0.2, aggregation="constant", constant_tokens=MAX_LENGTH),
        {"loss_type": "dr_grpo", "max_completion_length": MAX_LENGTH},
    ),
    "dual clip": (
        LossSettings(kind="dual_clip", clip_high=0.2, dual_clip=1.5),
        {"loss_type": "dapo", "delta": 1.5},
    ),
    "GSPO": (
        LossSettings(kind="gspo", clip_low=0.05, clip_high=0.08, aggregation="sequence_mean"),
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 0.05, "epsilon_high": 0.08},
    ),
    "CISPO": (LossSettings(kind="cispo", ratio_cap=1.2), {"loss_type": "cispo", "epsilon_high": 1.2}),
    "SAPO": (
        LossSettings(kind="sapo", tau_positive=1.0, tau_negative=1.05, aggregation="sequence_mean"),
        {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05},
    ),
    "KL to a reference": (
        LossSettings(clip_high=0.2, aggregation="sequence_mean", kl="k3_loss", kl_coefficient=0.04),
        {"loss_type": "grpo", "beta": 0.04},
    ),
    "DeepSeek's mask": (
        LossSettings(clip_high=0.2, correction="negative_mask", drift_cap=0.05),
        {"loss_type": "dapo", "off_policy_mask_threshold": 0.05},
    ),
    "TIS, token": (
        LossSettings(clip_high=0.2, correction="tis", weight_high=1.1),
        {"loss_type": "dapo", "sampled": "token_truncate", "clip_min": None, "clip_max": 1.1},
    ),
    "TIS, sequence": (
        LossSettings(clip_high=0.2, correction="tis_sequence", weight_high=1.1),
        {"loss_type": "dapo", "sampled": "sequence_truncate", "clip_min": None, "clip_max": 1.1},
    ),
    "IcePop": (
        LossSettings(clip_high=0.2, correction="icepop", weight_low=0.8, weight_high=1.2),
        {"loss_type": "dapo", "sampled": "token_mask", "clip_min": 0.8, "clip_max": 1.2},
    ),
    "MIS, sequence": (
        LossSettings(clip_high=0.2, correction="mis", weight_low=0.8, weight_high=1.2),
        {"loss_type": "dapo", "sampled": "sequence_mask", "clip_min": 0.8, "clip_max": 1.2},
    ),
}
TRL_DEFAULTS: dict[str, Any] = {
    "beta": 0.0,
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "importance_sampling_level": "token",
    "off_policy_mask_threshold": None,
    "delta": None,
    "sampled": None,
}


def trl_loss(table: dict[str, Tensor], mask: Tensor, **chosen: Any) -> Tensor:
    """TRL's loss, with the trainer around it replaced by its settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl import GRPOTrainer  # type: ignore[import-not-found]  # noqa: PLC0415  slow to import
    settings = TRL_DEFAULTS | chosen
    is_sampled_elsewhere = settings["sampled"] is not None
    trainer = MagicMock(
        **settings,
        args=SimpleNamespace(steps_per_generation=1, use_bias_correction_kl=False, **settings),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda tensor: tensor, reduce=lambda tensor, **_: tensor),
        top_entropy_quantile=1.0,
        use_vllm=is_sampled_elsewhere,
        vllm_importance_sampling_correction=is_sampled_elsewhere,
        aux_loss_enabled=False,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        _get_per_token_logps_and_entropies=lambda *_, **__: (
            table["logprobs"],
            torch.zeros_like(table["logprobs"]),
            None,
        ),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
    )
    empty = torch.zeros(len(mask), 0, dtype=torch.long)
    inputs = {
        "prompt_ids": empty,
        "prompt_mask": empty,
        "completion_ids": torch.zeros_like(mask, dtype=torch.long),
        "completion_mask": mask.long(),
        "advantages": table["advantages"],
        "old_per_token_logps": table["proximal"] if is_sampled_elsewhere else table["behaviour"],
        "ref_per_token_logps": table["reference"],
        "sampling_per_token_logps": table["behaviour"],
        "num_items_in_batch": mask.sum(),
    }
    if is_sampled_elsewhere:
        inputs["importance_sampling_ratio"] = sampling_ratio(table, mask, **settings)
    loss: Tensor = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss


def sampling_ratio(
    table: dict[str, Tensor], mask: Tensor, *, sampled: str, clip_min: float | None, clip_max: float, **_: Any
) -> Tensor:
    """What `GRPOTrainer._generate_and_score_completions` makes of the engine's log-probs (in TRL not a function)."""
    differences = (table["proximal"] - table["behaviour"]) * mask
    ratio = (differences.sum(-1, keepdim=True) if sampled.startswith("sequence") else differences).exp()
    if sampled.endswith("truncate"):
        return ratio.clamp(min=clip_min, max=clip_max)
    return ratio.masked_fill((ratio < (clip_min or 0.0)) | (ratio > clip_max), 0.0)


def make_table(seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    behaviour = -torch.rand(SHAPE) * 3
    return {
        "behaviour": behaviour,
        "proximal": behaviour + torch.randn(SHAPE) * 0.2,
        "logprobs": behaviour + torch.randn(SHAPE) * 0.3,
        "reference": behaviour + torch.randn(SHAPE) * 0.3,
        "advantages": torch.randn(SHAPE[0]),
    }


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_are_those_of_trl(name: str, seed: int) -> None:
    loss, chosen = CASES[name]
    table = make_table(seed)
    mask = torch.rand(SHAPE) < 0.7
    if loss.correction in {"none", "negative_mask"}:
        table["proximal"] = table["behaviour"]
    start = table["logprobs"]
    ours, theirs = (start.clone().requires_grad_() for _ in range(2))
    weights = token_weights(mask, loss.aggregation, constant=loss.constant_tokens)
    result = policy_loss(flatten({**table, "logprobs": ours}, mask, weights=weights), loss).loss
    reference = trl_loss({**table, "logprobs": theirs}, mask, **chosen)
    result.backward()
    reference.backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert ours.grad.abs().max() > 0
    assert float((result - reference).detach().abs()) < 1e-5
    assert (ours.grad - theirs.grad).abs().max() < 1e-5
