"""Loss and gradient of every loss on labels that TRL has, against TRL's own trainers, in fp32."""

import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from apps.core.contracts.training import LossSettings
from tests.worker.trainer.ml.verdicts import make_verdicts
from tests.worker.trainer.samples import make_sample
from worker.trainer.aggregation import weigh_samples
from worker.trainer.label_losses import Verdicts
from worker.trainer.label_steps import weigh_verdicts

N_PAIRS = 5
SHAPE = (2 * N_PAIRS, 7)  # good ones first
PAIRS: dict[str, tuple[LossSettings, dict[str, Any]]] = {
    "DPO": (LossSettings(kind="dpo", beta=0.2), {"loss_types": ["sigmoid"]}),
    "IPO": (LossSettings(kind="ipo", beta=0.2), {"loss_types": ["ipo"]}),
    "robust DPO": (
        LossSettings(kind="robust_dpo", beta=0.2, label_noise=0.15),
        {"loss_types": ["robust"], "label_smoothing": 0.15},
    ),
    # of a pair TRL adds both halves up, and we take their mean
    "APO-zero": (
        LossSettings(kind="apo_zero", beta=0.2, good_weight=2.0, bad_weight=2.0),
        {"loss_types": ["apo_zero"]},
    ),
    "BCO": (LossSettings(kind="bco", beta=0.2, good_weight=2.0, bad_weight=2.0), {"loss_types": ["bco_pair"]}),
}
UNPAIRED: dict[str, tuple[LossSettings, dict[str, Any]]] = {
    "KTO": (
        LossSettings(kind="kto", beta=0.2, good_weight=1.2, bad_weight=0.9),
        {"loss_type": "kto", "calculate_KL": True, "desirable_weight": 1.2, "undesirable_weight": 0.9},
    ),
    "APO-zero": (
        LossSettings(kind="apo_zero", beta=0.2),
        {"loss_type": "apo_zero_unpaired", "calculate_KL": False, "desirable_weight": 1.0, "undesirable_weight": 1.0},
    ),
}


def make_table(seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    logprobs = -torch.rand(SHAPE) * 3
    return {
        "logprobs": logprobs,
        "reference": logprobs + torch.randn(SHAPE) * 0.3,
        "mask": (torch.rand(SHAPE) < 0.7) | (torch.arange(SHAPE[1]) == 0),
        "is_good": torch.arange(SHAPE[0]) < N_PAIRS,
    }


def ours(table: dict[str, Tensor], loss: LossSettings, *, z: float = 0.0) -> tuple[float, Tensor]:
    """Our loss, and its slope at each token (B, T)."""
    mask = table["mask"]
    verdicts = Verdicts(
        log_ratios=((table["logprobs"] - table["reference"]) * mask).sum(-1).requires_grad_(),
        n_tokens=mask.sum(-1),
        is_good=table["is_good"],
        chosen=torch.arange(N_PAIRS),
        rejected=torch.arange(N_PAIRS) + N_PAIRS,
        drift=torch.full((len(mask),), z),
    )
    slopes, measured = weigh_verdicts(verdicts, loss)
    return measured["loss"], slopes[:, None] * mask


def import_trl(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import trl  # type: ignore[import-not-found]  # noqa: PLC0415  slow to import

        return getattr(trl, name)


def make_trainer(**settings: Any) -> MagicMock:
    """TRL's trainer, replaced by its settings."""
    accelerator = SimpleNamespace(
        device="cpu",
        num_processes=1,
        parallelism_config=None,
        gather=lambda tensor: tensor,
        gather_for_metrics=lambda tensor: tensor,
    )
    shared = {
        "beta": 0.2, "accelerator": accelerator, "aux_loss_enabled": False, "precompute_ref_logps": True,
        "_metrics": {"train": defaultdict(list)}, "_total_train_tokens": 0, "_tp_size": 1,
        "model": MagicMock(training=True),
    }  # fmt: skip
    return MagicMock(**{**shared, **settings})


def answer_with(logprobs: Tensor) -> Any:
    """A model that says these log-probs of the tokens behind each first one."""
    nothing = torch.zeros_like(logprobs)
    outputs = SimpleNamespace(
        log_probs=logprobs, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool(), label_mask=logprobs != 0
    )
    return lambda **_: outputs


def inputs_of(table: dict[str, Tensor]) -> dict[str, Tensor]:
    """What TRL's collators make of a table: one token before the first that is predicted."""
    ids = torch.zeros(SHAPE[0], SHAPE[1] + 1, dtype=torch.long)
    mask = torch.cat([torch.zeros(SHAPE[0], 1, dtype=torch.long), table["mask"].long()], dim=1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": mask}


def assert_alike(table: dict[str, Tensor], loss: LossSettings, theirs: Tensor, start: Tensor, **options: Any) -> None:
    value, slopes = ours(table, loss, **options)
    theirs.backward()
    assert start.grad is not None
    assert start.grad.abs().max() > 0
    assert abs(value - float(theirs.detach())) < 1e-5
    assert (slopes - start.grad).abs().max() < 1e-5


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", range(3))
def test_pairs_are_those_of_trl(name: str, seed: int) -> None:
    loss, chosen = PAIRS[name]
    table = make_table(seed)
    references = (table["reference"] * table["mask"]).sum(-1)
    start = table["logprobs"].clone().requires_grad_()
    trainer = make_trainer(
        loss_weights=[1.0], ld_alpha=None, f_divergence_type="reverse_kl", use_weighting=False, **chosen
    )
    inputs = inputs_of(table) | {"ref_chosen_logps": references[:N_PAIRS], "ref_rejected_logps": references[N_PAIRS:]}
    theirs = import_trl("DPOTrainer")._compute_loss(trainer, answer_with(start * table["mask"]), inputs, False)
    assert_alike(table, loss, theirs, start)


@pytest.mark.parametrize("name", UNPAIRED)
@pytest.mark.parametrize("seed", range(3))
def test_single_verdicts_are_those_of_trl(name: str, seed: int) -> None:
    loss, chosen = UNPAIRED[name]
    table = make_table(seed)
    start = table["logprobs"].clone().requires_grad_()
    others = {"policy": torch.full((SHAPE[0],), -3.0), "reference": torch.full((SHAPE[0],), -3.4)}
    trainer = make_trainer(_compute_kl_logps=lambda *_: others["policy"], **chosen)
    inputs = inputs_of(table) | {
        "label": table["is_good"],
        "ref_logps": (table["reference"] * table["mask"]).sum(-1),
        "ref_KL_logps": others["reference"],
    }
    theirs = import_trl("KTOTrainer")._compute_loss(trainer, answer_with(start * table["mask"]), inputs, False)
    assert_alike(table, loss, theirs, start, z=0.4)


@pytest.mark.parametrize("seed", range(3))
def test_a_reward_models_loss_is_that_of_trl(seed: int) -> None:
    torch.manual_seed(seed)
    scores = torch.randn(2 * N_PAIRS, 1)
    start = scores.clone().requires_grad_()
    trainer = make_trainer(args=SimpleNamespace(center_rewards_coefficient=None))
    inputs = {"input_ids": torch.zeros(2 * N_PAIRS, 3), "attention_mask": torch.ones(2 * N_PAIRS, 3)}
    theirs = import_trl("RewardTrainer").compute_loss(trainer, lambda **_: SimpleNamespace(logits=start), inputs)
    theirs.backward()
    verdicts = make_verdicts(scores[:N_PAIRS, 0].tolist(), scores[N_PAIRS:, 0].tolist())
    slopes, measured = weigh_verdicts(verdicts, LossSettings(kind="bradley_terry"))
    assert start.grad is not None
    assert abs(measured["loss"] - float(theirs.detach())) < 1e-5
    assert (slopes - start.grad[:, 0]).abs().max() < 1e-5


@pytest.mark.parametrize("seed", range(3))
def test_imitation_is_that_of_trl(seed: int) -> None:
    table = make_table(seed)
    start = table["logprobs"].clone().requires_grad_()
    trainer = make_trainer(
        args=SimpleNamespace(loss_type="nll", average_tokens_across_devices=False),
        compute_loss_func=None,
        label_smoother=None,
    )
    inputs = inputs_of(table)
    theirs = import_trl("SFTTrainer").compute_loss(trainer, answer_with(start * table["mask"]), inputs)
    theirs.backward()
    lengths = table["mask"].sum(-1).tolist()
    samples = [make_sample(completion_ids=(1,) * length, logprobs=(0.0,) * length) for length in lengths]
    weights = torch.tensor(weigh_samples(samples, LossSettings()))[:, None] * table["mask"]
    assert start.grad is not None
    assert (start.grad + weights).abs().max() < 1e-5
    assert abs(float((weights * -table["logprobs"]).sum()) - float(theirs.detach())) < 1e-5
