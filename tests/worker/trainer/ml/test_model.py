"""The policy: exact whatever shares a micro-batch, neutral when fresh, faithful to the adapter it starts from."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM

from apps.core.contracts.training import LoraSettings
from tests.worker.trainer.samples import even_weights, make_job, make_samples
from worker.trainer.errors import TrainerError
from worker.trainer.micro_batches import build_filler, build_micro_batch
from worker.trainer.model import Policy, load_policy, max_length, vocab_size


def make_question(n_samples: int) -> dict[str, Any]:
    samples = make_samples(n_samples, seed=0)
    micro = build_micro_batch(samples, weights=even_weights(samples))
    return {"trie": micro.trie, "targets": micro.targets}


def largest_gap(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).detach().abs().max()) for name in one)


def test_only_the_adapter_has_gradients(policy: Policy) -> None:
    logprobs, _ = policy(**make_question(2))
    logprobs.sum().backward()
    trained = {name for name, parameter in policy.named_parameters() if parameter.grad is not None}
    assert trained
    assert all("lora_" in name for name in trained)


def test_a_fresh_adapter_changes_nothing_and_is_drawn_from_the_seed(model_dir: Path) -> None:
    one, same, other = (load_policy(make_job(model_dir, seed=seed)) for seed in (1, 1, 2))
    question = make_question(2)
    with torch.no_grad():
        adapted, _ = one(**question)
        with one.without_adapter():
            plain, _ = one(**question)
    assert torch.equal(adapted, plain)
    states = [{name: p for name, p in policy.named_parameters() if p.requires_grad} for policy in (one, same, other)]
    assert largest_gap(states[0], states[1]) == 0
    assert largest_gap(states[0], states[2]) > 0


def test_the_adapter_sits_on_every_linear_layer_but_the_output(policy: Policy) -> None:
    targets = {name.rpartition(".")[-1] for name in policy.model.peft_config["default"].target_modules}
    assert targets == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_the_model_knows_its_sizes(policy: Policy) -> None:
    assert (vocab_size(policy), max_length(policy)) == (512, 256)


SIZES: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}


def test_a_window_bounds_the_samples(tmp_path: Path) -> None:
    """What lies beyond it, the model would not see; the trie's attention does not look at windows."""
    config = MistralConfig(**SIZES, num_attention_heads=2, num_key_value_heads=2, sliding_window=32)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    assert max_length(load_policy(make_job(tmp_path))) == 32


def test_a_model_with_other_layers_than_attention_is_refused(tmp_path: Path) -> None:
    MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1)).save_pretrained(tmp_path)
    with pytest.raises(TrainerError, match="layers other than attention"):
        load_policy(make_job(tmp_path))


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
    filler = build_filler()
    logprobs, _ = policy(trie=filler.trie, targets=filler.targets)
    logprobs.sum().backward()
    assert len(logprobs) == 0
    assert all(not p.grad.any() for p in policy.parameters() if p.requires_grad and p.grad is not None)
