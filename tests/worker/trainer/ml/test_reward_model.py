"""The reward model: it says what the saved model says, and only adapter and head are trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from apps.core.contracts.labelled import Answer, Judged
from apps.core.contracts.training import LossSettings, OptimizerSettings, TrainJob
from tests.worker.trainer.ml.conftest import stir
from tests.worker.trainer.ml.engines import PlainEngine
from tests.worker.trainer.samples import make_job, make_samples
from worker.engine.models.tiny import train_tokenizer
from worker.trainer.adapters import save_adapter
from worker.trainer.imitation import build_parts
from worker.trainer.label_steps import list_endings, measure_values, optimizer_step
from worker.trainer.ranks import Ranks
from worker.trainer.reward_model import RewardModel, load_reward_model, save_reward_model


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path, device="cpu")


@pytest.fixture
def job(model_dir: Path) -> TrainJob:
    optimizer = OptimizerSettings(learning_rate=1e-2, max_grad_norm=1e9, minibatch_samples=100)
    return make_job(model_dir, loss=LossSettings(kind="bradley_terry"), optimizer=optimizer)


@pytest.fixture
def model(job: TrainJob) -> RewardModel:
    model = load_reward_model(job)
    stir(model)
    return model


@pytest.fixture
def judged() -> list[Judged]:
    """Two pairs; of the first good one only the last answer's end is looked at."""
    answers = [
        Answer(answer_id=sample.step_id, prompt_ids=sample.prompt_ids, completion_ids=sample.completion_ids)
        for sample in make_samples(5, seed=3)
    ]
    sides = [("a", True, answers[:2]), ("a", False, answers[2:3]), ("b", True, answers[3:4]), ("b", False, answers[4:])]
    return [
        Judged(trajectory_id=f"t{number}", answers=tuple(part), is_good=is_good, pair=pair)
        for number, (pair, is_good, part) in enumerate(sides)
    ]


def whole(judged: Judged) -> list[int]:
    return [*judged.answers[-1].prompt_ids, *judged.answers[-1].completion_ids]


def scores_of(model: RewardModel, judged: list[Judged], job: TrainJob, ranks: Ranks) -> Any:
    samples = list_endings(judged)
    return measure_values(
        PlainEngine(model), build_parts(samples, job=job, ranks=ranks), n_samples=len(samples), ranks=ranks
    )


def test_what_is_saved_says_what_was_trained(
    model: RewardModel, judged: list[Judged], job: TrainJob, model_dir: Path, tmp_path: Path, ranks: Ranks
) -> None:
    train_tokenizer().save_pretrained(model_dir)
    trained = scores_of(model, judged, job, ranks)
    save_reward_model(model, job, run_dir=tmp_path, ranks=ranks)
    served = AutoModelForSequenceClassification.from_pretrained(tmp_path / "reward_model")
    with torch.no_grad():
        said = torch.stack([served(input_ids=torch.tensor([whole(each)])).logits[0, 0] for each in judged])
        padded = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(whole(each)) for each in judged], batch_first=True, padding_value=served.config.pad_token_id
        )
        batched = served(input_ids=padded).logits[:, 0]
    assert (said - trained).abs().max() < 1e-5
    assert (batched - trained).abs().max() < 1e-5
    assert (tmp_path / "reward_model" / "tokenizer.json").exists()


def test_only_adapter_and_head_are_trained_and_saved(
    model: RewardModel, judged: list[Judged], job: TrainJob, tmp_path: Path, ranks: Ranks
) -> None:
    engine = PlainEngine(model)
    done = optimizer_step(engine, list_endings(judged), judged=judged, job=job, ranks=ranks)
    gradients = engine.gradients()
    assert all("lora_" in name or "score" in name for name in gradients)
    assert any("score" in name and gradient.abs().max() > 0 for name, gradient in gradients.items())
    scores = scores_of(model, judged, job, ranks)
    margins = scores[[0, 2]] - scores[[1, 3]]
    assert done.values["loss"] == pytest.approx(float(-torch.nn.functional.logsigmoid(margins).mean()), rel=1e-5)
    assert done.values["margin"] == pytest.approx(float(margins.mean()), rel=1e-5)
    files = save_adapter(model, run_dir=tmp_path, step=1, zero_stage=0, ranks=ranks)
    assert files is not None
    assert any("score" in name for name in load_file(Path(files.path) / "adapter_model.safetensors"))


def test_adapter_and_head_are_drawn_from_the_seed(job: TrainJob) -> None:
    one, same = (dict(load_reward_model(job).named_parameters()) for _ in range(2))
    assert all(torch.equal(one[name], same[name]) for name in one)
