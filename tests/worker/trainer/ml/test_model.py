"""The policy: exact whatever shares a micro-batch, neutral when fresh, faithful to the adapter it starts from."""

from pathlib import Path
from typing import Any

import pytest
import torch

from apps.core.contracts.training import LoraSettings, TrainSample
from tests.worker.trainer.samples import even_weights, make_job, make_samples
from worker.trainer import batches
from worker.trainer.batches import MicroBatch, build_filler, build_micro_batch
from worker.trainer.errors import TrainerError
from worker.trainer.model import Policy, load_policy, max_length, vocab_size


def inputs_of(micro: MicroBatch) -> tuple[Any, ...]:
    return micro.prefix_ids, micro.input_ids, micro.predicts, micro.targets, micro.temperatures


def run_groups(policy: Policy, groups: list[list[TrainSample]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return each sample's log-probs and, of their sum, each parameter's gradient."""
    policy.zero_grad()
    logprobs: dict[str, Any] = {}
    for group in groups:
        micro = build_micro_batch(group, weights=even_weights(group))
        values, _ = policy(*inputs_of(micro))
        lengths = [len(sample.completion_ids) for sample in group]
        rows = values.detach().split(lengths)
        logprobs |= {sample.step_id: row for sample, row in zip(group, rows, strict=True)}
        values.sum().backward()
    gradients = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    return logprobs, gradients


def largest_gap(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).detach().abs().max()) for name in one)


@pytest.mark.parametrize("min_shared", [1, 10_000], ids=["prefix computed once", "padded"])
def test_a_micro_batch_gives_what_its_samples_give_alone(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, min_shared: int
) -> None:
    samples = make_samples(6, seed=2)
    alone = run_groups(policy, [[sample] for sample in samples])
    monkeypatch.setattr(batches, "MIN_SHARED_TOKENS", min_shared)
    together = run_groups(policy, [samples])
    assert largest_gap(alone[0], together[0]) < 1e-5
    scale = max(float(gradient.abs().max()) for gradient in alone[1].values())
    assert largest_gap(alone[1], together[1]) < 1e-5 * scale


def test_only_the_adapter_has_gradients(policy: Policy) -> None:
    _, gradients = run_groups(policy, [make_samples(2, seed=0)])
    assert gradients
    assert all("lora_" in name for name in gradients)


def test_a_fresh_adapter_changes_nothing_and_is_drawn_from_the_seed(model_dir: Path) -> None:
    one, same, other = (load_policy(make_job(model_dir, seed=seed)) for seed in (1, 1, 2))
    samples = make_samples(2, seed=0)
    micro = build_micro_batch(samples, weights=even_weights(samples))
    inputs = inputs_of(micro)
    with torch.no_grad():
        adapted, _ = one(*inputs)
        with one.model.disable_adapter():
            plain, _ = one(*inputs)
    assert torch.equal(adapted, plain)
    states = [{name: p for name, p in policy.named_parameters() if p.requires_grad} for policy in (one, same, other)]
    assert largest_gap(states[0], states[1]) == 0
    assert largest_gap(states[0], states[2]) > 0


def test_the_adapter_sits_on_every_linear_layer_but_the_output(policy: Policy) -> None:
    targets = {name.rpartition(".")[-1] for name in policy.model.peft_config["default"].target_modules}
    assert targets == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_the_model_knows_its_sizes(policy: Policy) -> None:
    assert (vocab_size(policy), max_length(policy)) == (512, 256)


def test_a_missing_model_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="cannot be loaded"):
        load_policy(make_job(tmp_path / "none"))


def test_a_missing_adapter_is_said_in_words(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="no adapter"):
        load_policy(make_job(model_dir, initial_adapter_dir=str(tmp_path)))


def test_an_unknown_precision_is_refused(model_dir: Path) -> None:
    with pytest.raises(TrainerError, match="precision"):
        load_policy(make_job(model_dir, precision="int3"))


def test_an_adapter_of_another_rank_is_refused(model_dir: Path, tmp_path: Path) -> None:
    load_policy(make_job(model_dir)).model.save_pretrained(str(tmp_path))
    with pytest.raises(TrainerError, match="rank 8"):
        load_policy(make_job(model_dir, initial_adapter_dir=str(tmp_path), lora=LoraSettings(rank=16, alpha=16)))


def test_a_filler_passes_through_and_leaves_a_gradient_of_zero(policy: Policy) -> None:
    logprobs, _ = policy(*inputs_of(build_filler()))
    logprobs.sum().backward()
    assert len(logprobs) == 0
    assert all(not p.grad.any() for p in policy.parameters() if p.requires_grad and p.grad is not None)
