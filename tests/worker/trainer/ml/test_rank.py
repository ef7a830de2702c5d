"""The edge of a rank's process: one trainer to a folder."""

from pathlib import Path

import pytest

from worker.trainer import rank
from worker.trainer.errors import TrainerError


def is_free(run_dir: Path) -> bool:
    """Say whether a trainer could begin in the folder now."""
    try:
        with rank.held_alone(run_dir, is_holder=True):
            return True
    except TrainerError:
        return False


def test_a_second_trainer_in_the_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "LOCK_WAIT_S", 0)
    with (
        rank.held_alone(tmp_path, is_holder=True),
        pytest.raises(TrainerError, match="Another trainer"),
        rank.held_alone(tmp_path, is_holder=True),
    ):
        pass


def test_the_folder_is_free_again_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "LOCK_WAIT_S", 0)
    with rank.held_alone(tmp_path, is_holder=True):
        assert not is_free(tmp_path)
    assert is_free(tmp_path)


def test_the_other_ranks_of_a_run_need_no_lock(tmp_path: Path) -> None:
    with rank.held_alone(tmp_path, is_holder=False):
        assert is_free(tmp_path)
