"""Steps that learn from labels: exact however they are cut up, and nothing from what nobody judged."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from apps.core.contracts.labelled import Answer, Judged
from apps.core.contracts.training import LossSettings, OptimizerSettings, TrainBatch, TrainJob, TrainSample
from tests.worker.trainer.ml.engines import PlainEngine, largest_gap
from tests.worker.trainer.samples import PROBE, make_job, make_samples
from worker.trainer.algorithms import ALGORITHMS, find_algorithm
from worker.trainer.batches import check_judged
from worker.trainer.errors import BatchError, TrainerError
from worker.trainer.imitation import build_parts, list_answers
from worker.trainer.label_losses import Verdicts, label_loss
from worker.trainer.label_steps import measure_drift, optimizer_step, train_on_labels
from worker.trainer.model import Policy
from worker.trainer.ranks import Ranks
from worker.trainer.steps import train_step
from worker.trainer.updates import forward


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path, device="cpu")


def job_of(model_dir: Path, loss: LossSettings, *, max_tokens: int = 100) -> TrainJob:
    """A job that clips nothing."""
    optimizer = OptimizerSettings(learning_rate=1e-2, max_grad_norm=1e9, minibatch_samples=100)
    return make_job(model_dir, loss=loss, optimizer=optimizer, max_tokens_per_microbatch=max_tokens)


def make_judged(n_pairs: int) -> list[Judged]:
    """Pairs whose good one has two answers and whose bad one has one."""
    samples = iter(make_samples(3 * n_pairs, seed=4))
    judged: list[Judged] = []
    for number in range(n_pairs):
        for is_good in (True, False):
            answers = tuple(to_answer(next(samples)) for _ in range(2 if is_good else 1))
            judged.append(
                Judged(trajectory_id=f"traj_{len(judged)}", answers=answers, is_good=is_good, pair=f"pair_{number}")
            )
    return judged


def to_answer(sample: TrainSample) -> Answer:
    return Answer(answer_id=sample.step_id, prompt_ids=sample.prompt_ids, completion_ids=sample.completion_ids)


def logprob_of(policy: Policy, model_dir: Path, ranks: Ranks, answer: Answer) -> Tensor:
    """The answer's log-prob, computed alone."""
    alone = [Judged(trajectory_id="t", answers=(answer,), is_good=True)]
    (part,) = build_parts(list_answers(alone), job=job_of(model_dir, LossSettings()), ranks=ranks)
    logprobs, _ = forward(PlainEngine(policy), part.micro)
    return logprobs.sum()


def log_ratio_of(policy: Policy, model_dir: Path, ranks: Ranks, answers: tuple[Answer, ...]) -> Tensor:
    with torch.no_grad(), policy.without_adapter():
        reference = [logprob_of(policy, model_dir, ranks, answer) for answer in answers]
    return torch.stack([logprob_of(policy, model_dir, ranks, answer) for answer in answers]).sum() - sum(reference)


@pytest.mark.parametrize("kind", ["dpo", "kto", "bco"])  # alone, told of the drift, told of the level
def test_the_gradient_is_that_of_whole_answers_one_at_a_time(
    kind: str, policy: Policy, model_dir: Path, ranks: Ranks
) -> None:
    loss, judged, engine = LossSettings(kind=kind, beta=0.2), make_judged(2), PlainEngine(policy)
    job = job_of(model_dir, loss)
    ratios = torch.stack([log_ratio_of(policy, model_dir, ranks, each.answers) for each in judged])
    drift = measure_drift(engine, list_answers(judged), job=job, ranks=ranks) if kind == "kto" else 0.0
    level = float(loss.beta * ratios.detach().mean()) if kind == "bco" else 0.0
    n_answers = torch.tensor([len(each.answers) for each in judged])
    verdicts = Verdicts(
        log_ratios=ratios,
        n_tokens=torch.tensor([sum(len(answer.completion_ids) for answer in each.answers) for each in judged]),
        is_good=torch.tensor([each.is_good for each in judged]),
        chosen=torch.tensor([0, 2]),
        rejected=torch.tensor([1, 3]),
        drift=drift * n_answers,
        level=level,
    )
    value = label_loss(verdicts, loss)
    engine.backward(value)
    alone = engine.gradients()
    done = optimizer_step(engine, list_answers(judged), judged=judged, job=job, ranks=ranks)
    assert done.values["loss"] == pytest.approx(float(value.detach()), rel=1e-5)
    assert largest_gap(alone, engine.gradients()) < 1e-5


def test_imitation_weighs_every_token_alike(policy: Policy, model_dir: Path, ranks: Ranks) -> None:
    judged, engine = make_judged(1), PlainEngine(policy)
    answers = [answer for each in judged for answer in each.answers]
    n_tokens = sum(len(answer.completion_ids) for answer in answers)
    value = -torch.stack([logprob_of(policy, model_dir, ranks, answer) for answer in answers]).sum() / n_tokens
    engine.backward(value)
    alone = engine.gradients()
    job = job_of(model_dir, LossSettings(kind="cross_entropy"))
    done = optimizer_step(engine, list_answers(judged), judged=judged, job=job, ranks=ranks)
    assert done.values["loss"] == pytest.approx(float(value.detach()), rel=1e-5)
    assert done.values.keys() == {"loss", "entropy"}
    assert largest_gap(alone, engine.gradients()) < 1e-5


def test_drift_is_measured_on_answers_to_other_prompts(policy: Policy, model_dir: Path, ranks: Ranks) -> None:
    one, other = (to_answer(sample) for sample in make_samples(2, seed=1))
    judged = [Judged(trajectory_id=answer.answer_id, answers=(answer,), is_good=True) for answer in (one, other)]
    mixed = [
        dataclasses.replace(one, completion_ids=other.completion_ids),
        dataclasses.replace(other, completion_ids=one.completion_ids),
    ]
    with torch.no_grad():
        expected = max(0.0, sum(float(log_ratio_of(policy, model_dir, ranks, (answer,))) for answer in mixed) / 2)
    job = job_of(model_dir, LossSettings(kind="kto"))
    drift = measure_drift(PlainEngine(policy), list_answers(judged), job=job, ranks=ranks)
    assert drift == pytest.approx(expected, abs=1e-5)
    with pytest.raises(BatchError, match="two of them"):
        measure_drift(PlainEngine(policy), list_answers(judged[:1]), job=job, ranks=ranks)


def test_a_running_mean_is_kept_where_checkpoints_hold_it(policy: Policy) -> None:
    assert policy.move_level(torch.tensor([1.0, 3.0])) == 2.0
    assert policy.move_level(torch.tensor([-4.0])) == 0.0
    assert policy.state_dict()["level"].tolist() == [0.0, 3.0]


def test_pairs_stay_whole_in_an_optimizer_step(policy: Policy, model_dir: Path, ranks: Ranks) -> None:
    job = dataclasses.replace(
        job_of(model_dir, LossSettings(kind="dpo")),
        optimizer=OptimizerSettings(learning_rate=1e-2, max_grad_norm=1.0, minibatch_samples=3),
    )
    batch = TrainBatch(step=1, samples=(), probe=PROBE, judged=tuple(make_judged(4)))
    metrics = train_on_labels(PlainEngine(policy), batch, job=job, ranks=ranks, list_samples=list_answers)
    assert metrics["samples"] == 12
    assert 0 <= metrics["accuracy"] <= 1


def check(*judged: Judged) -> None:
    batch = TrainBatch(step=1, samples=(), probe=PROBE, judged=judged)
    check_judged(batch, step=1, vocab_size=512, max_length=64)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(answer_id="a", prompt_ids=(1,)), "empty prompt or completion"),
        (Answer(answer_id="a", prompt_ids=(1,), completion_ids=(512,)), "another tokenizer"),
        (Answer(answer_id="a", prompt_ids=(1,) * 64, completion_ids=(1,)), "longer than the model's 64"),
    ],
)
def test_an_answer_that_cannot_be_learnt_is_named(answer: Answer, words: str) -> None:
    with pytest.raises(BatchError, match=words):
        check(Judged(trajectory_id="t", answers=(answer,), is_good=True))


def test_half_a_pair_and_nothing_at_all_are_refused() -> None:
    answer = Answer(answer_id="a", prompt_ids=(1,), completion_ids=(2,))
    with pytest.raises(BatchError, match="one good and one bad"):
        check(Judged(trajectory_id="t", answers=(answer,), is_good=True, pair="p"))
    with pytest.raises(BatchError, match="empty"):
        check()


def test_an_algorithm_of_tomorrow_is_refused(model_dir: Path) -> None:
    assert find_algorithm(make_job(model_dir)) is ALGORITHMS["policy_gradient"]
    with pytest.raises(TrainerError, match="newer than this trainer"):
        find_algorithm(make_job(model_dir, algorithm="tomorrow"))


def test_imitation_beside_a_policy_gradient_is_a_mean_over_its_own_tokens(
    policy: Policy, model_dir: Path, ranks: Ranks
) -> None:
    """The gradient is that of both by themselves, whatever the number of tokens of either."""
    engine, judged = PlainEngine(policy), make_judged(1)[:1]
    samples = tuple(make_samples(3, seed=9))

    def gradient_of(sft_weight: float, **parts: Any) -> dict[str, Tensor]:
        job = job_of(model_dir, LossSettings(sft_weight=sft_weight))
        metrics = train_step(engine, TrainBatch(step=1, probe=PROBE, **parts), job=job, ranks=ranks)
        assert ("sft_loss" in metrics) == ("judged" in parts)
        return engine.gradients()

    alone = gradient_of(0.0, samples=samples)
    both = gradient_of(0.5, samples=samples, judged=tuple(judged))
    imitated = job_of(model_dir, LossSettings(kind="cross_entropy"))
    optimizer_step(engine, list_answers(judged), judged=judged, job=imitated, ranks=ranks)
    own = engine.gradients()
    assert largest_gap(both, {name: alone[name] + 0.5 * own[name] for name in alone}) < 1e-5
