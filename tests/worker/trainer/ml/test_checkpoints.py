"""Checkpoints: a half-written one is never picked, two are kept, damage and other process counts are said in words."""

from pathlib import Path

import pytest

from tests.worker.trainer.samples import PROBE
from worker.trainer.checkpoints import find_checkpoint, load_checkpoint, save_checkpoint
from worker.trainer.errors import TrainerError
from worker.trainer.events import make_event
from worker.trainer.ranks import Ranks


class FakeEngine:
    """Writes and reads one file, as DeepSpeed does many."""

    def save_checkpoint(self, folder: str, *, tag: str, save_latest: bool, exclude_frozen_parameters: bool) -> None:
        (Path(folder) / tag).mkdir()
        (Path(folder) / tag / "weights").write_text("weights")

    def load_checkpoint(self, folder: str, *, tag: str, load_module_strict: bool) -> tuple[str, None]:
        (Path(folder) / tag / "weights").read_text()
        return folder, None


def save(run_dir: Path, step: int) -> None:
    event = make_event("step", step=step, metrics={"loss": 0.5}, probe=PROBE)
    save_checkpoint(FakeEngine(), run_dir=run_dir, event=event, ranks=Ranks(run_dir, device="cpu"))


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_without_one_there_is_none(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path, n_ranks=1) is None


def test_the_newest_is_found_with_its_event(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    found = find_checkpoint(tmp_path, n_ranks=1)
    assert found is not None
    assert (found.step, found.event.metrics) == (2, {"loss": 0.5})
    load_checkpoint(FakeEngine(), found)


def test_two_are_kept_and_leftovers_of_a_crash_are_swept(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / ".step-000009.partial").mkdir(parents=True)
    for step in (1, 2, 3):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-000002", "step-000003"]


def test_a_half_written_one_is_never_picked(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "checkpoints" / "step-000001").rename(tmp_path / "checkpoints" / ".step-000002.partial")
    assert find_checkpoint(tmp_path, n_ranks=1) is None


def test_a_damaged_one_is_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "checkpoints/step-000001/state.json").write_text("{")
    with pytest.raises(TrainerError, match="step-000001 is damaged"):
        find_checkpoint(tmp_path, n_ranks=1)


def test_one_whose_weights_are_gone_is_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "checkpoints/step-000001/engine/weights").unlink()
    found = find_checkpoint(tmp_path, n_ranks=1)
    assert found is not None
    with pytest.raises(TrainerError, match="step-000001 cannot be read"):
        load_checkpoint(FakeEngine(), found)


def test_one_of_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(TrainerError, match="written by 1 processes; now there are 2"):
        find_checkpoint(tmp_path, n_ranks=2)
