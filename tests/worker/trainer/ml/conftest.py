"""A tiny random model on disk, and policies on it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.worker.trainer.samples import VOCABULARY, make_job
from worker.trainer import tries
from worker.trainer.model import Policy, load_policy

torch.set_num_threads(1)  # over tensors this small, threads wait for each other longer than they compute


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def share_everything() -> Iterator[None]:
    """Tries branch after a single shared token."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tries, "MIN_SHARED_TOKENS", 1)
        yield


@pytest.fixture
def policy(model_dir: Path) -> Policy:
    """A policy whose adapter has an effect: a fresh one has none, and would hide mistakes."""
    policy = load_policy(make_job(model_dir))
    stir(policy)
    return policy


def stir(policy: Any) -> None:
    """Draw the second LoRA factor, which starts at zero, at random."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
