"""The estimate made before a launch, against what a process really takes: within a factor, for what it is to rank."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from apps.training.estimate import estimate_run
from apps.training.model_shape import read_model_shape
from apps.training.recipes import read_recipe

N_TOKENS = 1024
STEP = """
import resource, sys
import deepspeed, torch
from tests.worker.trainer.samples import even_weights, make_job, make_sample
from worker.trainer.micro_batches import build_micro_batch
from worker.trainer.model import load_policy
import dataclasses
folder, tuning, thrifty, n_tokens = sys.argv[1], sys.argv[2], sys.argv[3] == "True", int(sys.argv[4])
job = make_job(folder, tuning=tuning, gradient_checkpointing=thrifty)
policy = load_policy(job if tuning == "lora" else dataclasses.replace(job, lora=None))
policy.train()
optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad])
half = n_tokens // 2
sample = make_sample(prompt_ids=tuple(range(half)), completion_ids=tuple(range(half)), logprobs=(-1.0,) * half)
micro = build_micro_batch([sample], weights=even_weights([sample]))
for _ in range(2):
    policy(trie=micro.trie, targets=micro.targets)[0].sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.fixture(scope="module")
def middling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 46 M parameters, which outweigh what the libraries take."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16384, hidden_size=512, intermediate_size=1536, num_hidden_layers=9, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=2048, tie_word_embeddings=False,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("middling")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("tuning", "thrifty"), [("lora", False), ("full", True)])
def test_a_process_takes_about_what_was_estimated(middling: Path, tuning: str, *, thrifty: bool) -> None:
    shape = read_model_shape(middling)
    assert shape is not None
    recipe = read_recipe({"tuning": tuning, "gradient_checkpointing": thrifty, "max_tokens_per_microbatch": N_TOKENS})
    estimated = estimate_run(shape, recipe, device="cpu", pace=None)
    argv = [sys.executable, "-c", STEP, str(middling), tuning, str(thrifty), str(N_TOKENS)]
    answer = subprocess.run(argv, capture_output=True, text=True, check=True)
    measured = int(answer.stdout.split()[-1])
    sys.stderr.write(
        f"{tuning}, checkpointing {thrifty}: estimated / measured {estimated.device_total / measured:.2f}\n"
    )
    assert 0.6 < estimated.device_total / measured < 1.6, (dict(estimated.device), measured)
