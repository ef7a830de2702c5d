"""Checkpoints: half-written ones are never picked, the newest and the best stay, damage leads to the one before."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.trainer.samples import PROBE
from worker.trainer.checkpoints import Retention, find_checkpoint, load_checkpoint, save_checkpoint
from worker.trainer.errors import TrainerError
from worker.trainer.events import make_event
from worker.trainer.ranks import Ranks


class FakeEngine:
    """Writes and reads one file, as DeepSpeed does many."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault

    def save_checkpoint(self, folder: str, *, tag: str, save_latest: bool, exclude_frozen_parameters: bool) -> None:
        (Path(folder) / tag).mkdir()
        if self.fault is not None:
            raise self.fault
        (Path(folder) / tag / "weights").write_text("weights")

    def load_checkpoint(self, folder: str, *, tag: str, load_module_strict: bool) -> tuple[str, None]:
        (Path(folder) / tag / "weights").read_text()
        return folder, None


LAST_TWO = Retention(n_last=2, best="none")


def save(
    run_dir: Path, step: int, *, loss: float = 0.5, retention: Retention = LAST_TWO, fault: Exception | None = None
) -> None:
    event = make_event("step", step=step, metrics={"loss": loss, "reward_mean": loss}, probe=PROBE)
    ranks = Ranks(run_dir, device="cpu")
    save_checkpoint(FakeEngine(fault), run_dir=run_dir, event=event, retention=retention, ranks=ranks)


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_without_one_there_is_none(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path, n_ranks=1) is None


def test_the_newest_is_found_with_its_event(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    found = find_checkpoint(tmp_path, n_ranks=1)
    assert found is not None
    assert (found.step, found.event.metrics["loss"], found.passed_over) == (2, 0.5, ())
    load_checkpoint(FakeEngine(), found.path)


def test_two_are_kept_and_leftovers_of_a_crash_are_swept(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / ".step-000009.partial").mkdir(parents=True)
    for step in (1, 2, 3):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-000002", "step-000003"]


def test_a_half_written_one_is_never_picked(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "checkpoints" / "step-000001").rename(tmp_path / "checkpoints" / ".step-000002.partial")
    assert find_checkpoint(tmp_path, n_ranks=1) is None


@pytest.mark.parametrize(("best", "kept"), [("none", [4]), ("loss", [2, 4]), ("reward_mean", [1, 4])])
def test_the_best_one_stays_beside_the_newest(tmp_path: Path, best: str, kept: list[int]) -> None:
    for step, loss in enumerate([0.9, 0.2, 0.4, 0.4], start=1):
        save(tmp_path, step, loss=loss, retention=Retention(n_last=1, best=best))
    assert names(tmp_path) == [f"step-{step:06d}" for step in kept]


def spoil_state(folder: Path) -> None:
    (folder / "state.json").write_text("{")


def spoil_weights(folder: Path) -> None:
    (folder / "engine/weights").write_text("weightz")


def lose_weights(folder: Path) -> None:
    (folder / "engine/weights").unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_state, "cannot be read"),
        (spoil_weights, "the checksum of engine/weights differs"),
        (lose_weights, "engine/weights is missing"),
    ],
)
def test_damage_leads_back_to_the_one_before_in_words(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    spoil(tmp_path / "checkpoints/step-000002")
    found = find_checkpoint(tmp_path, n_ranks=1)
    assert found is not None
    assert found.step == 1
    assert words in found.passed_over[0]
    spoil(tmp_path / "checkpoints/step-000001")
    with pytest.raises(TrainerError, match="No whole one is left: launch a new run"):
        find_checkpoint(tmp_path, n_ranks=1)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), "file write failed"),
    ],
)
def test_a_full_disk_is_said_and_leaves_the_last_whole_one(tmp_path: Path, fault: Exception, words: str) -> None:
    save(tmp_path, 1)
    with pytest.raises(TrainerError, match=rf"step-000002 could not be written: .*{words}.*make room"):
        save(tmp_path, 2, fault=fault)
    assert names(tmp_path) == ["step-000001"]
    found = find_checkpoint(tmp_path, n_ranks=1)
    assert found is not None
    assert found.step == 1


def test_one_of_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(TrainerError, match="written by 1 processes; now there are 2"):
        find_checkpoint(tmp_path, n_ranks=2)
