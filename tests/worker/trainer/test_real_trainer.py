"""Real trainers, started by the real launcher on a tiny random model."""

import dataclasses
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from apps.core.contracts.checksum import hash_folder
from apps.core.contracts.training import (
    EVENTS_FILE,
    LOG_FILE,
    STOP_FILE,
    LossSettings,
    OptimizerSettings,
    TrainerEvent,
    checkpoint_dir,
    weights_dir,
)
from tests.worker.trainer.samples import make_batch, make_job, make_samples, write_batch, write_job
from worker.trainer.command import build_command
from worker.trainer.events import read_events

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
START_S = 420  # the first start compiles an operator: minutes, where two cores have more to do
TIMING = {"seconds", "tokens_per_s"}
EVERY_PART = LossSettings(
    kind="gspo",
    clip_low=0.05,
    clip_high=0.05,
    aggregation="rollout_mean",
    correction="icepop",
    weight_low=0.8,
    weight_high=1.2,
    kl="k2_loss",
    kl_coefficient=0.1,
    min_ess=0.999,
)


class Trainer:
    """A real trainer in its own process group, with the folder it works in."""

    def __init__(self, python: str, run_dir: Path, *, n_processes: int = 1, largest_file: int | None = None) -> None:
        """`largest_file`: bytes; a write beyond them fails as on a full disk."""
        self.run_dir, self.port = run_dir, _free_port()
        argv, extra = build_command(python, run_dir, n_processes=n_processes, master_port=self.port)
        with (run_dir / LOG_FILE).open("ab") as log:
            self.process = subprocess.Popen(
                argv,
                env={**os.environ, **extra},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if largest_file is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (largest_file, largest_file))

    def events(self) -> list[TrainerEvent]:
        return read_events(self.run_dir / EVENTS_FILE)

    def wait_for(self, kind: str, *, step: int, count: int = 1) -> TrainerEvent:
        """Return the `count`-th such event once it is there."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            found = [event for event in self.events() if (event.kind, event.step) == (kind, step)]
            if len(found) >= count:
                return found[count - 1]
            if self.process.poll() is not None and not found:
                break
            time.sleep(0.05)
        pytest.fail(f"no {kind} of step {step}: {self.events()}\n{(self.run_dir / LOG_FILE).read_text()[-3000:]}")

    def wait(self) -> int:
        return self.process.wait(START_S)

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def group_is_gone(self) -> bool:
        """Whether no process of the group is left."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(0.1)
        return False

    def listens_at(self) -> set[str]:
        """The addresses at which processes of the group can be reached."""
        group = [process for process in psutil.process_iter() if _find_group(process.pid) == self.process.pid]
        found = [connection for process in group for connection in process.net_connections(kind="inet")]
        return {connection.laddr.ip for connection in found if connection.status == psutil.CONN_LISTEN}

    def shares_memory(self) -> bool:
        """Whether memory that its ranks shared has a name, by which it stays when they are gone."""
        return any(SHARED_MEMORY.glob(f"*_{self.port}_*"))


SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  where Linux has it
StartTrainer = Callable[..., Trainer]


def _find_group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def start(ml_python: str, model_dir: Path, tmp_path: Path) -> Iterator[StartTrainer]:
    """Start a trainer in a folder that is made on first use with a job and the batches of `steps`."""
    trainers: list[Trainer] = []

    def start_trainer(
        *,
        steps: tuple[int, ...] = (1, 2, 3),
        n_processes: int = 1,
        folder: str = "run",
        largest_file: int | None = None,
        **job: Any,
    ) -> Trainer:
        run_dir = tmp_path / folder
        if not run_dir.exists():
            write_job(run_dir, make_job(model_dir, **job))
            for step in steps:
                write_batch(run_dir, make_batch(step))
        trainers.append(Trainer(ml_python, run_dir, n_processes=n_processes, largest_file=largest_file))
        return trainers[-1]

    yield start_trainer
    for trainer in trainers:
        if trainer.process.poll() is None:
            trainer.signal(signal.SIGKILL)
            trainer.process.wait()


@pytest.fixture(scope="session")
def whole(ml_python: str, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A run of three steps that nothing disturbed."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    write_job(run_dir, make_job(model_dir))
    for step in (1, 2, 3):
        write_batch(run_dir, make_batch(step))
    trainer = Trainer(ml_python, run_dir)
    assert trainer.wait() == 0
    return trainer


def curve(trainer: Trainer) -> list[dict[str, float]]:
    """The metrics of all steps in order, the clock's left out."""
    steps = [event for event in trainer.events() if event.kind == "step"]
    return [{name: value for name, value in event.metrics.items() if name not in TIMING} for event in steps]


def probes(trainer: Trainer) -> list[tuple[float, ...]]:
    return [event.probe.logprobs for event in trainer.events() if event.kind == "step" and event.probe]


def test_what_a_run_leaves_behind(whole: Trainer) -> None:
    event = whole.wait_for("step", step=3)
    assert event.adapter is not None
    assert hash_folder(Path(event.adapter.path)) == event.adapter.sha256
    assert event.probe is not None
    assert len(event.probe.logprobs) == len(event.probe.likely_ids) == len(event.probe.token_ids) - 1
    assert event.metrics.keys() == {
        "loss", "kl", "ratio_mean", "ratio_max", "clip_fraction", "ess", "entropy", "grad_norm", "tokens",
        "tokens_per_s", "seconds", "learning_rate", "samples", "mean_logprob_diff", "masked_fraction", "reference_kl",
        "step_scale",
    }  # fmt: skip
    assert probes(whole)[0] != probes(whole)[1]
    assert len(list((whole.run_dir / "checkpoints").iterdir())) == 2
    assert not whole.shares_memory()


def test_a_run_killed_in_the_middle_goes_on_with_the_same_curve(start: StartTrainer, whole: Trainer) -> None:
    killed = start(steps=(1, 2))
    killed.wait_for("step", step=2)
    killed.signal(signal.SIGKILL)
    killed.wait()
    assert killed.group_is_gone()
    write_batch(killed.run_dir, make_batch(3))
    again = start()
    assert again.wait() == 0
    assert [(event.kind, event.step) for event in again.events()] == [
        ("ready", 0), ("step", 1), ("step", 2), ("ready", 2), ("step", 3), ("done", 3),
    ]  # fmt: skip
    assert curve(again) == curve(whole)
    assert probes(again) == probes(whole)


def test_an_event_lost_in_a_crash_is_told_again(start: StartTrainer, whole: Trainer, tmp_path: Path) -> None:
    shutil.copytree(whole.run_dir, tmp_path / "run")
    path = tmp_path / "run" / EVENTS_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][:40])  # the crash tore the event of step 3
    again = start()
    assert again.wait() == 0
    assert [(event.kind, event.step) for event in again.events()][-3:] == [("step", 3), ("ready", 3), ("done", 3)]
    assert curve(again) == curve(whole)


def file_sums(trainer: Trainer, step: int) -> dict[str, str]:
    """The checksums of a checkpoint's files."""
    sums: dict[str, str] = json.loads((trainer.run_dir / checkpoint_dir(step) / "state.json").read_text())["files"]
    return sums


def test_a_damaged_checkpoint_leads_back_to_the_one_before_and_to_the_same_weights(
    start: StartTrainer, whole: Trainer, tmp_path: Path
) -> None:
    shutil.copytree(whole.run_dir, tmp_path / "run")
    sums = file_sums(whole, 3)
    damaged = tmp_path / "run" / checkpoint_dir(3) / max(sums)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    again = start()
    assert again.wait() == 0
    ready, done = again.events()[-2:]
    assert (ready.kind, ready.step, done.kind, done.step) == ("ready", 2, "done", 3)
    assert f"step-000003 is damaged (the checksum of {max(sums)} differs)" in ready.message
    assert file_sums(again, 3) == sums
    assert curve(again) == curve(whole)


def test_a_full_disk_at_a_checkpoint_is_said_and_the_run_goes_on_when_there_is_room(
    start: StartTrainer, whole: Trainer
) -> None:
    adapter = whole.wait_for("step", step=1).adapter
    assert adapter is not None
    weights = (Path(adapter.path) / "adapter_model.safetensors").stat().st_size
    trainer = start(largest_file=weights + 4096)  # the adapter fits, the optimizer's state does not
    assert trainer.wait() == 1
    event = trainer.events()[-1]
    assert (event.kind, event.may_pass) == ("failed", False)
    assert "step-000001 could not be written" in event.message
    assert not list((trainer.run_dir / "checkpoints").iterdir())
    again = start()
    assert again.wait() == 0
    assert curve(again) == curve(whole)


def assert_alike(one: Trainer, other: Trainer) -> None:
    for ours, theirs in zip(curve(one), curve(other), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)
    for mine, yours in zip(probes(one), probes(other), strict=True):
        assert mine == pytest.approx(yours, abs=1e-5)


def test_two_processes_learn_what_one_learns(start: StartTrainer, whole: Trainer) -> None:
    two = start(n_processes=2)
    assert two.wait() == 0
    assert_alike(whole, two)


def test_two_processes_learn_what_one_learns_with_every_part_of_the_loss(start: StartTrainer) -> None:
    one = start(loss=EVERY_PART, folder="one")
    assert one.wait() == 0
    two = start(loss=EVERY_PART, folder="two", n_processes=2, zero_stage=2)
    assert two.wait() == 0
    assert_alike(one, two)
    first, *_, last = curve(one)
    assert first["reference_kl"] < last["reference_kl"]  # it leaves the base model
    assert 0 < last["step_scale"] < 1
    assert 0 < last["masked_fraction"] < 1


def test_two_processes_learn_what_one_learns_when_all_weights_learn(start: StartTrainer) -> None:
    whole_model: dict[str, Any] = {"tuning": "full", "lora": None, "steps": (1, 2), "n_steps": 2}
    slow = OptimizerSettings(learning_rate=1e-4, max_grad_norm=1.0, minibatch_samples=4)
    whole_model["loss"] = LossSettings(kl="k1_reward", kl_coefficient=0.1, whitens=True)
    one = start(folder="one", zero_stage=1, optimizer=slow, **whole_model)
    assert one.wait() == 0
    two = start(folder="two", n_processes=2, zero_stage=3, gradient_checkpointing=True, optimizer=slow, **whole_model)
    assert two.wait() == 0
    assert_alike(one, two)
    assert probes(one)[0] != probes(one)[1]
    files = two.wait_for("step", step=2).adapter
    assert files is not None
    assert Path(files.path) == two.run_dir / weights_dir(2)
    assert hash_folder(Path(files.path)) == files.sha256
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in Path(files.path).iterdir()}


def test_a_signal_stops_it_and_it_goes_on_later(start: StartTrainer, whole: Trainer) -> None:
    trainer = start(steps=(1,))
    trainer.wait_for("step", step=1)
    trainer.signal(signal.SIGTERM)
    assert trainer.wait() == 0
    trainer.wait_for("stopped", step=1)
    assert trainer.group_is_gone()
    for step in (2, 3):
        write_batch(trainer.run_dir, make_batch(step))
    again = start()
    assert again.wait() == 0
    assert curve(again) == curve(whole)


def test_a_file_stops_it(start: StartTrainer) -> None:
    trainer = start(steps=())
    trainer.wait_for("ready", step=0)
    (trainer.run_dir / STOP_FILE).touch()
    assert trainer.wait() == 0
    trainer.wait_for("stopped", step=0)


def test_a_signal_while_it_is_still_loading_is_a_stop_too(start: StartTrainer) -> None:
    trainer = start()
    time.sleep(1)
    trainer.signal(signal.SIGTERM)
    assert trainer.wait() == 0
    assert trainer.events()[-1].kind == "stopped"


def _assert_failed(trainer: Trainer, *, words: str) -> None:
    assert trainer.wait() == 1
    event = trainer.events()[-1]
    assert event.kind == "failed"
    assert words in event.message
    assert not (trainer.run_dir / "adapters").exists()
    assert not (trainer.run_dir / "checkpoints").exists()


def test_a_batch_without_advantages_fails_the_run(start: StartTrainer) -> None:
    trainer = start(steps=())
    flat = tuple(dataclasses.replace(sample, advantage=0.0) for sample in make_samples(4, seed=1))
    write_batch(trainer.run_dir, make_batch(1, samples=flat))
    _assert_failed(trainer, words="Every advantage")


def test_a_loss_that_is_not_a_number_publishes_nothing(start: StartTrainer) -> None:
    too_fast = OptimizerSettings(learning_rate=1e30, max_grad_norm=1e30, minibatch_samples=4)
    _assert_failed(start(optimizer=too_fast), words="finite")


def test_a_killed_rank_fails_the_run_in_words(start: StartTrainer) -> None:
    trainer = start(steps=(), n_processes=2)
    trainer.wait_for("ready", step=0)
    assert trainer.listens_at() == {"127.0.0.1"}  # nobody outside this host reaches its ranks
    pattern = "worker.trainer.rank .*/run$"
    found = subprocess.run(
        ["pgrep", "-g", str(trainer.process.pid), "-f", pattern], capture_output=True, text=True, check=True
    )
    os.kill(max(map(int, found.stdout.split())), signal.SIGKILL)
    assert trainer.wait() == 1
    event = trainer.events()[-1]
    assert (event.kind, event.may_pass) == ("failed", True)
    assert "process of the trainer is gone" in event.message or "killed by signal 9" in event.message
    assert trainer.group_is_gone()
    assert not trainer.shares_memory()
