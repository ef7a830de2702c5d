"""A trie gives, in log-probs and gradients, what transformers gives for each sequence alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention
from transformers.integrations import flex_attention as flex

from apps.core.contracts.training import TrainSample
from tests.worker.trainer.ml.conftest import stir
from tests.worker.trainer.samples import make_job, make_sample, make_samples
from worker.trainer import model
from worker.trainer.micro_batches import build_micro_batch, plan_micro_batches
from worker.trainer.model import Policy, load_policy
from worker.trainer.trie_attention import NAME, build_block_mask

Samples = Sequence[TrainSample]
Outcome = tuple[dict[str, Tensor], dict[str, Tensor]]  # log-probs by sample, gradients by parameter
pytestmark = pytest.mark.usefixtures("share_everything")


def load_with_adapter(model_dir: Path) -> Policy:
    policy = load_policy(make_job(model_dir))
    stir(policy)
    return policy


def load_whole(model_dir: Path) -> Policy:
    return load_policy(make_job(model_dir, tuning="full", lora=None))


def load_checkpointed(model_dir: Path) -> Policy:
    """One that computes its layers again on the way back."""
    return load_policy(make_job(model_dir, tuning="full", lora=None, gradient_checkpointing=True))


@pytest.fixture(
    scope="module", params=[load_with_adapter, load_whole, load_checkpointed], ids=lambda load: load.__name__
)
def trained(request: pytest.FixtureRequest, model_dir: Path) -> Policy:
    load: Callable[[Path], Policy] = request.param
    policy = load(model_dir)
    policy.train()
    return policy


def run_in_tries(policy: Policy, groups: Sequence[Samples], *, weights: dict[str, float]) -> Outcome:
    policy.zero_grad()
    logprobs: dict[str, Tensor] = {}
    for group in groups:
        micro = build_micro_batch(group, weights=weights)
        values, _ = policy(trie=micro.trie, targets=micro.targets)
        (micro.weights * micro.advantages * values).sum().backward()
        rows = values.detach().split([len(sample.completion_ids) for sample in group])
        logprobs |= {sample.step_id: row for sample, row in zip(group, rows, strict=True)}
    return logprobs, collect_gradients(policy)


def run_alone(policy: Policy, samples: Samples, *, weights: dict[str, float]) -> Outcome:
    """Each sample by transformers' own attention, its whole vocabulary for every token, one after the other."""
    policy.zero_grad()
    base = policy.model.get_base_model() if hasattr(policy.model, "get_base_model") else policy.model
    base.set_attn_implementation("sdpa")
    logprobs: dict[str, Tensor] = {}
    for sample in samples:
        ids = torch.tensor([sample.prompt_ids + sample.completion_ids])
        logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(sample.prompt_ids) - 1 : -1]
        distribution = torch.log_softmax(logits / sample.temperature, dim=-1)
        values = distribution.gather(-1, torch.tensor(sample.completion_ids)[:, None])[:, 0]
        (weights[sample.step_id] * sample.advantage * values).sum().backward()
        logprobs[sample.step_id] = values.detach()
    base.set_attn_implementation(NAME)
    return logprobs, collect_gradients(policy)


def collect_gradients(policy: Policy) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def assert_alike(one: Outcome, other: Outcome) -> None:
    """To a millionth in single precision, where the parts themselves are rounded to a ten-millionth."""
    for mine, yours in zip(one, other, strict=True):
        assert mine.keys() == yours.keys()
        largest = max(float(tensor.abs().max()) for tensor in yours.values())
        assert max(float((mine[name] - yours[name]).abs().max()) for name in mine) < 1e-6 * (1 + largest)


@st.composite
def draw_samples(draw: st.DrawFn) -> list[TrainSample]:
    """Samples over three tokens: answers to one prompt, turns of one conversation, equal ones."""
    drawn: list[Any] = draw(st.lists(st.lists(st.integers(1, 3), min_size=2, max_size=12), min_size=1, max_size=6))
    samples = []
    for number, tokens in enumerate(drawn):
        at = draw(st.integers(1, len(tokens) - 1))
        samples.append(
            make_sample(
                step_id=f"step_{number}",
                prompt_ids=tuple(tokens[:at]),
                completion_ids=tuple(tokens[at:]),
                logprobs=(-1.0,) * (len(tokens) - at),
                advantage=draw(st.sampled_from([-1.0, 0.5])),
                temperature=draw(st.sampled_from([0.7, 1.0])),
            )
        )
    return samples


def mean_weights(samples: Samples) -> dict[str, float]:
    n_tokens = sum(len(sample.completion_ids) for sample in samples)
    return {sample.step_id: 1 / n_tokens for sample in samples}


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=draw_samples())
def test_random_tries_give_what_each_sample_gives_alone(trained: Policy, samples: list[TrainSample]) -> None:
    weights = mean_weights(samples)
    assert_alike(run_in_tries(trained, [samples], weights=weights), run_alone(trained, samples, weights=weights))


def test_however_the_tries_are_cut(trained: Policy) -> None:
    samples = make_samples(9, seed=2)
    weights = mean_weights(samples)
    alone = run_alone(trained, samples, weights=weights)
    for max_tokens in (1, 90, 10_000):
        (groups,) = plan_micro_batches(samples, max_tokens=max_tokens, n_ranks=1)
        assert_alike(run_in_tries(trained, groups, weights=weights), alone)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_way_of_a_gpu(trained: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same model over a block mask, with FlexAttention in the slow form that runs on a CPU."""
    monkeypatch.setattr(model, "lay_out", lambda trie: build_block_mask(trie, is_compiled=False))
    monkeypatch.setattr(flex, "is_torchdynamo_compiling", lambda: True)  # so that it does not compile itself
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)  # which refuses gradients on a CPU
    samples = make_samples(5, seed=2)
    weights = mean_weights(samples)
    assert_alike(run_in_tries(trained, [samples], weights=weights), run_alone(trained, samples, weights=weights))
