"""What learns: an adapter or all weights, with the same base to compare with; checkpointing changes no number."""

from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.config import DeepSpeedConfig
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from apps.core.contracts.checksum import hash_folder
from tests.worker.trainer.ml.test_model import make_question
from tests.worker.trainer.samples import make_job
from worker.trainer.adapters import save_adapter
from worker.trainer.errors import TrainerError
from worker.trainer.model import Policy, build_engine, engine_config, load_policy
from worker.trainer.ranks import Ranks
from worker.trainer.whole_weights import save_weights


def full(model_dir: Path, **changes: Any) -> Policy:
    return load_policy(make_job(model_dir, tuning="full", lora=None, **changes))


def gradients(policy: Policy) -> dict[str, Any]:
    policy.train()
    policy(**make_question(4))[0].sum().backward()
    return {name: parameter.grad for name, parameter in policy.named_parameters() if parameter.grad is not None}


def test_all_weights_learn(model_dir: Path) -> None:
    policy = full(model_dir)
    assert gradients(policy).keys() == {name for name, _ in policy.named_parameters()}
    assert {parameter.dtype for parameter in policy.parameters()} == {torch.float32}


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_checkpointing_changes_no_gradient(model_dir: Path, tuning: str) -> None:
    settings: dict[str, Any] = {"tuning": tuning} | ({"lora": None} if tuning == "full" else {})
    plain, thrifty = (
        gradients(load_policy(make_job(model_dir, gradient_checkpointing=thrifty, **settings)))
        for thrifty in (False, True)
    )
    assert plain.keys() == thrifty.keys()
    for name, gradient in plain.items():
        assert torch.allclose(gradient, thrifty[name], rtol=1e-6, atol=1e-9)


def test_the_reference_is_the_base_however_far_the_weights_have_gone(model_dir: Path) -> None:
    policy, base, question = full(model_dir), full(model_dir), make_question(2)
    names = [name for name, _ in policy.named_parameters()]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.01)
        with policy.without_adapter():
            reference, _ = policy(**question)
        assert torch.equal(reference, base(**question)[0])
        assert not torch.equal(policy(**question)[0], reference)
    assert [name for name, _ in policy.named_parameters()] == names  # it is no part of what is trained and saved


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path, device="cpu")


def test_the_whole_model_is_read_back_exactly(model_dir: Path, tmp_path: Path, ranks: Ranks) -> None:
    job, policy = make_job(model_dir, tuning="full", lora=None), full(model_dir)
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(1.5)
    files = save_weights(policy, job=job, run_dir=tmp_path, step=1, ranks=ranks)
    assert files is not None
    assert files.sha256 == hash_folder(Path(files.path))
    again, question = full(model_dir, initial_weights_dir=files.path), make_question(2)
    with torch.no_grad():
        assert torch.equal(policy(**question)[0], again(**question)[0])


def test_tied_weights_are_written_apart(tmp_path: Path, ranks: Ranks) -> None:
    """Engines that reload them would else answer 200 and serve wrong logits."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "tied")
    job = make_job(tmp_path / "tied", tuning="full", lora=None)
    policy = load_policy(job)
    files = save_weights(policy, job=job, run_dir=tmp_path, step=1, ranks=ranks)
    assert files is not None
    written = load_file(Path(files.path) / "model.safetensors")
    assert torch.equal(written["lm_head.weight"], written["model.embed_tokens.weight"])
    again = AutoModelForCausalLM.from_pretrained(files.path)
    assert not again.config.tie_word_embeddings
    ids = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.allclose(again(input_ids=ids).logits, policy.model(input_ids=ids).logits, atol=1e-6)


def test_all_weights_go_on_from_an_adapter(policy: Policy, model_dir: Path, tmp_path: Path, ranks: Ranks) -> None:
    files = save_adapter(policy, run_dir=tmp_path, step=1, zero_stage=0, ranks=ranks)
    assert files is not None
    merged, question = full(model_dir, initial_adapter_dir=files.path), make_question(2)
    with torch.no_grad():
        assert torch.allclose(policy(**question)[0], merged(**question)[0], atol=1e-5)
    assert all(parameter.requires_grad for parameter in merged.parameters())


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"tuning": "some"}, "Unknown tuning"), ({"tuning": "qlora"}, "needs an NVIDIA GPU"), ({"lora": None}, "adapter")],
)
def test_what_cannot_be_tuned_is_refused_in_words(model_dir: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainerError, match=words):
        load_policy(make_job(model_dir, **changes))


def test_offloading_on_a_cpu_is_refused(policy: Policy, model_dir: Path) -> None:
    with pytest.raises(TrainerError, match="offload has no effect on a CPU"):
        build_engine(policy, make_job(model_dir, zero_stage=2, offload="optimizer"))


@pytest.mark.parametrize(
    ("stage", "offload", "holds"),
    [(2, "none", (False, False)), (1, "optimizer", (True, False)), (3, "parameters", (True, True))],
)
def test_deepspeed_takes_the_configuration(model_dir: Path, stage: int, offload: str, holds: tuple[bool, bool]) -> None:
    config = DeepSpeedConfig(engine_config(make_job(model_dir, zero_stage=stage, offload=offload)))
    zero = config.zero_config
    assert (config.zero_optimization_stage, config.gradient_clipping) == (stage, 1.0)
    assert (zero.offload_optimizer is not None, zero.offload_param is not None) == holds
