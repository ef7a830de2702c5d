"""What a run takes: hand-worked bytes, each setting that should help does, and a run that cannot fit is refused."""

import json
import re
import struct
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from apps.accounts.models import Project
from apps.core.errors import InvalidInput
from apps.registry.models import Policy
from apps.training.estimate import GIB, Estimate, ModelShape, Pace, Room, estimate_run, find_shortage
from apps.training.model_shape import read_model_shape
from apps.training.models import Attempt, Metric
from apps.training.recipes import read_recipe
from apps.training.room import look_ahead, report_host
from apps.trajectories.models import Trajectory
from tests.apps.training.conftest import LaunchRun, claim

SMALL = ModelShape(n_parameters=1000, n_layers=2, hidden_size=8, mlp_size=16, query_size=8, key_size=4, vocab_size=32)
SEVEN_B = ModelShape(
    n_parameters=7_000_000_000, n_layers=32, hidden_size=4096, mlp_size=11008, query_size=4096, key_size=4096,
    vocab_size=32000,
)  # fmt: skip


def estimate(shape: ModelShape = SMALL, *, device: str = "cuda", pace: Pace | None = None, **chosen: Any) -> Estimate:
    return estimate_run(shape, read_recipe(chosen), device=device, pace=pace)


def test_an_adapters_parts_by_hand() -> None:
    found = estimate(lora_rank=8, lora_alpha=8, max_tokens_per_microbatch=100, keep_checkpoints=1, n_steps=3)
    # A layer's maps: q 8+8, k 8+4, v 8+4, o 8+8, three of the MLP 8+16 each: 128 wide.
    assert found.n_trainable == 8 * 2 * 128 == 2048
    assert found.device["weights"] == (1000 + 2048) * 4
    assert found.device["gradients"] == 2048 * 4
    assert found.device["optimizer"] == 2048 * 8
    assert found.device["activations"] == 2 * 100 * 4 * (15 * 8 + 5 * 16)
    assert found.device["logits"] == 50 * 32 * 4 * 4
    assert found.disk == 2048 * (4 + 8) + 3 * 2048 * 4


def test_all_weights_take_sixteen_bytes_each_before_anything_is_computed() -> None:
    found = estimate(SEVEN_B, tuning="full")
    states = sum(found.device[name] for name in ("weights", "gradients", "optimizer"))
    assert states == 7_000_000_000 * 16


@pytest.mark.parametrize(
    ("one", "other", "part"),
    [
        ({"lora_rank": 64}, {"lora_rank": 8}, "optimizer"),
        ({"tuning": "full"}, {"tuning": "lora"}, "gradients"),
        ({"tuning": "lora"}, {"tuning": "qlora"}, "weights"),
        ({"n_processes": 4, "zero_stage": 0}, {"n_processes": 4, "zero_stage": 1}, "optimizer"),
        ({"n_processes": 4, "zero_stage": 1}, {"n_processes": 4, "zero_stage": 2}, "gradients"),
        ({"n_processes": 4, "zero_stage": 2}, {"n_processes": 4, "zero_stage": 3}, "weights"),
        ({"zero_stage": 3}, {"zero_stage": 3, "n_processes": 2, "n_hosts": 2}, "weights"),
        ({}, {"gradient_checkpointing": True}, "activations"),
        ({"max_tokens_per_microbatch": 4096}, {"max_tokens_per_microbatch": 1024}, "logits"),
        ({"tuning": "full", "kl": "k2_loss"}, {"tuning": "full"}, "reference"),
    ],
)
def test_what_should_help_helps(one: dict[str, Any], other: dict[str, Any], part: str) -> None:
    assert estimate(SEVEN_B, **one).device[part] > estimate(SEVEN_B, **other).device[part]


def test_what_is_offloaded_moves_to_the_host() -> None:
    here, away = estimate(SEVEN_B, zero_stage=3), estimate(SEVEN_B, zero_stage=3, offload="parameters")
    assert away.host == here.device["optimizer"] + here.device["weights"]
    assert away.device_total == here.device_total - away.host


def test_time_is_that_of_the_last_steps_tokens() -> None:
    pace = Pace(tokens_per_s=500, tokens_per_trajectory=1000, seconds_to_start=30)
    found = estimate(pace=pace, trajectories_per_step=10)
    assert (found.seconds_to_start, found.seconds_per_step) == (30, 20)
    assert estimate().seconds_per_step is None


@pytest.mark.parametrize(
    ("room", "chosen", "words"),
    [
        (
            Room(device=24 * GIB, host=None, disk=None),
            {"tuning": "full"},
            "GPU's memory, .* 24.0 GiB: change",
        ),
        (Room(device=24 * GIB, host=None, disk=None), {"tuning": "full"}, "tuning .lora., zero_stage, offload"),
        (Room(device=None, host=16 * GIB, disk=None), {}, "GiB of the host's memory, .* gradient_checkpointing"),
        (
            Room(device=None, host=None, disk=GIB),
            {"tuning": "full"},
            "of the disk, .* keep_versions or n_steps",
        ),
    ],
)
def test_what_cannot_fit_is_told_with_what_to_change(room: Room, chosen: dict[str, Any], words: str) -> None:
    recipe = read_recipe(chosen)
    shortage = find_shortage(estimate_run(SEVEN_B, recipe, device="cuda", pace=None), room, recipe)
    assert re.search(words, shortage), shortage


def test_what_fits_or_is_not_known_is_no_shortage() -> None:
    recipe = read_recipe({})
    small = estimate_run(SMALL, recipe, device="cuda", pace=None)
    for room in (Room(device=80 * GIB, host=80 * GIB, disk=80 * GIB), Room(device=None, host=None, disk=None)):
        assert find_shortage(small, room, recipe) == ""


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A folder that says what a model of 135 M parameters says, without its weights."""
    config = {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49152,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    header = json.dumps({"__metadata__": {}, "a": {"shape": [1000, 1000]}, "b": {"shape": [500]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return tmp_path


def test_a_models_folder_tells_its_shape(model_dir: Path) -> None:
    shape = read_model_shape(model_dir)
    assert shape is not None
    assert (shape.n_parameters, shape.query_size, shape.key_size) == (1_000_500, 576, 192)


def test_an_output_layer_of_its_own_is_told_from_the_rest(model_dir: Path) -> None:
    shapes = {"model.embed_tokens.weight": [50, 8], "lm_head.weight": [50, 8], "a": [100]}
    header = json.dumps({name: {"shape": shape} for name, shape in shapes.items()}).encode()
    (model_dir / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    shape = read_model_shape(model_dir)
    assert shape is not None
    found = estimate(shape)
    assert (found.n_parameters, found.n_output_parameters, found.n_counted_once) == (900, 400, 500)


@pytest.mark.parametrize("text", [None, "{", "{}", "[]"])
def test_a_folder_that_says_too_little_has_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert read_model_shape(tmp_path) is None


@pytest.fixture
def known_model(policy: Policy, model_dir: Path) -> Policy:
    Policy.objects.update(base_model_dir=str(model_dir))
    return policy


def test_without_a_report_nobody_is_stopped(known_model: Policy, project: Project) -> None:
    outlook = look_ahead(project, read_recipe({}))
    assert (outlook.fits, outlook.problem) == (None, "no train worker has said yet what its host has")
    assert outlook.estimate is not None


def test_a_launch_that_cannot_fit_is_refused(
    known_model: Policy, launch: LaunchRun, two_ready: list[Trajectory]
) -> None:
    report_host("gpu1", device="cuda", device_memory=2 * GIB, memory=64 * GIB)
    with pytest.raises(InvalidInput, match="GiB of the GPU's memory"):
        launch()
    report_host("gpu1", device="cuda", device_memory=80 * GIB, memory=64 * GIB)
    assert launch().state == "queued"


@pytest.mark.parametrize(
    ("chosen", "field"), [({"tuning": "qlora"}, "tuning"), ({"offload": "optimizer", "zero_stage": 1}, "offload")]
)
def test_what_needs_a_gpu_is_refused_without_one(
    known_model: Policy, launch: LaunchRun, two_ready: list[Trajectory], chosen: dict[str, Any], field: str
) -> None:
    report_host("here", device="cpu", device_memory=None, memory=64 * GIB)
    with pytest.raises(InvalidInput, match="GPU") as caught:
        launch(**chosen)
    assert caught.value.field == f"recipe.{field}"
    outlook = look_ahead(known_model.project, read_recipe(chosen))
    assert (outlook.fits, outlook.problem) == (False, str(caught.value))


def test_time_is_known_after_a_first_run(known_model: Policy, launch: LaunchRun, two_ready: list[Trajectory]) -> None:
    run = launch()
    attempt = claim(run)
    recipe = read_recipe({"trajectories_per_step": 10, "n_steps": 3})
    assert look_ahead(run.project, recipe).seconds is None
    measured = {"tokens": 1000.0, "tokens_per_s": 100.0, "trajectories": 2}
    for step, values in enumerate([measured, {"loss": 0.5}], start=1):
        Metric.objects.create(run=run, attempt=attempt, step=step, values=values)
    assert look_ahead(run.project, recipe).seconds == pytest.approx(3 * 10 * 500 / 100, abs=10)


def test_time_counts_the_trainers_start(known_model: Policy, launch: LaunchRun, two_ready: list[Trajectory]) -> None:
    run = launch()
    attempt = claim(run)
    measured = {"tokens": 1000.0, "tokens_per_s": 100.0, "trajectories": 2, "seconds": 10.0}
    for step, at_s in enumerate((50, 900), start=1):
        at = attempt.started_at + timedelta(seconds=at_s)
        Metric.objects.create(run=run, attempt=attempt, step=step, values=measured, at=at)
    waited = Attempt.objects.create(run=run, number=2, state="ended", host="here", started_at=attempt.started_at)
    at = attempt.started_at + timedelta(seconds=3000)
    Metric.objects.create(run=run, attempt=waited, step=3, values=measured, at=at)
    outlook = look_ahead(run.project, read_recipe({"trajectories_per_step": 10, "n_steps": 3}))
    assert outlook.estimate is not None
    assert (outlook.estimate.seconds_to_start, outlook.seconds) == (40, 40 + 3 * 50)
