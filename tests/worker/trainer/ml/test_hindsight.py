"""Hindsight distillation: the policy with a hint before its eyes teaches the policy without it."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from apps.core.contracts.labelled import Conversation
from apps.core.contracts.training import LossSettings, Probe, TrainBatch
from tests.worker.trainer.ml.engines import PlainEngine, no_grad
from tests.worker.trainer.ml.policy_tokens import make_tokens
from tests.worker.trainer.samples import even_weights, make_batch, make_job, make_sample, make_samples
from worker.engine.models.tiny import train_tokenizer
from worker.trainer.batches import check_batch
from worker.trainer.distillation import measure_hints
from worker.trainer.errors import BatchError
from worker.trainer.losses import policy_loss
from worker.trainer.micro_batches import build_micro_batch
from worker.trainer.model import Policy
from worker.trainer.ranks import Ranks
from worker.trainer.rendering import Renderer
from worker.trainer.steps import Foresight, prepare_minibatch
from worker.trainer.updates import forward

HINT = Conversation(messages="[]", tools="[]", answer="{}")


def test_the_gap_is_that_between_both_prompts_and_nothing_without_a_hint(policy: Policy) -> None:
    plain, hinted = make_samples(2, seed=1)
    hinted = dataclasses.replace(hinted, hint=HINT, hinted_ids=(7, 8, *hinted.prompt_ids))
    engine = PlainEngine(policy)

    def logprobs_of(sample: object) -> torch.Tensor:
        with torch.no_grad():
            return forward(engine, build_micro_batch([sample], weights={sample.step_id: 1.0}))[0]  # type: ignore[attr-defined,list-item]

    told = logprobs_of(dataclasses.replace(hinted, prompt_ids=hinted.hinted_ids))
    expected = torch.cat([torch.zeros(len(plain.completion_ids)), told - logprobs_of(hinted)])
    micro = build_micro_batch([plain, hinted], weights=even_weights([plain, hinted]))
    said, _ = no_grad(lambda: forward(engine, micro))
    gaps = measure_hints(engine, [plain, hinted], micro, said=said)
    assert (gaps - expected).abs().max() < 1e-5
    assert gaps.abs().max() > 0
    alone = build_micro_batch([plain], weights=even_weights([plain]))
    assert not measure_hints(engine, [plain], alone, said=said[: len(plain.completion_ids)]).any()


def test_a_hint_adds_to_the_reward_token_by_token(policy: Policy, model_dir: Path, tmp_path: Path) -> None:
    samples = [
        dataclasses.replace(sample, hint=HINT, hinted_ids=(7, 8, *sample.prompt_ids))
        for sample in make_samples(2, seed=1)
    ]
    parts = {}
    engine, ranks, foresight = PlainEngine(policy), Ranks(tmp_path, device="cpu"), Foresight(samples=samples)
    for weight in (1.0, 2.0):
        job = make_job(model_dir, loss=LossSettings(hint_weight=weight), max_tokens_per_microbatch=10_000)
        (parts[weight],) = prepare_minibatch(engine, samples, job=job, ranks=ranks, foresight=foresight)
    rewards = parts[1.0].micro.advantages
    assert torch.allclose(parts[2.0].advantages - rewards, 2 * (parts[1.0].advantages - rewards), atol=1e-6)
    assert len(set((parts[1.0].advantages - rewards).tolist())) > 2


def test_the_fixed_point_is_the_teachers_distribution() -> None:
    """Tabular: five answers, their expectation instead of a sample; the teacher knows the hint and stays as it is."""
    torch.manual_seed(0)
    teacher = torch.log_softmax(2 * torch.randn(5, dtype=torch.float64), 0)
    logits = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=0.5)
    for _ in range(600):
        logprobs = torch.log_softmax(logits, 0)
        fixed = logprobs.detach()
        changes = {"logprobs": logprobs, "behaviour": fixed, "proximal": fixed, "weights": fixed.exp()}
        tokens = make_tokens([1.0] * 5, (teacher - fixed).tolist(), **changes)
        optimizer.zero_grad()
        policy_loss(tokens, LossSettings()).loss.backward()
        optimizer.step()
    found = torch.log_softmax(logits.detach(), 0)
    assert float((found.exp() * (found - teacher)).sum()) < 1e-3


def test_a_hint_is_rendered_behind_the_prompt(tmp_path: Path) -> None:
    train_tokenizer().save_pretrained(tmp_path)
    asked = [{"role": "user", "content": "What is the time?"}, {"role": "user", "content": "Name the city."}]
    hint = Conversation(
        messages=json.dumps(asked), tools="[]", answer=json.dumps({"role": "assistant", "content": "x"})
    )
    batch = TrainBatch(step=1, samples=(make_sample(hint=hint), make_sample()), probe=Probe(token_ids=(1, 2)))
    hinted, plain = Renderer(tmp_path).render_batch(batch).samples
    words = str(train_tokenizer().decode(hinted.hinted_ids))
    assert words.endswith("<|im_start|>user\nName the city.<|im_end|>\n<|im_start|>assistant\n")
    assert (hinted.prompt_ids, plain.hinted_ids) == ((1, 2, 3), ())


def test_a_hint_that_does_not_fit_is_refused_by_name() -> None:
    batch = make_batch(1, samples=(make_sample(advantage=0.0, hint=HINT, hinted_ids=(1,) * 300),))
    with pytest.raises(BatchError, match="step_1 with its hint is longer"):
        check_batch(batch, step=1, vocab_size=512, max_length=256)
