"""One platform at a time in a data directory."""

import os
from pathlib import Path

import pytest

from worker.host import lock
from worker.host.errors import HostError


def test_a_second_holder_is_refused_with_the_firsts_process_id(tmp_path: Path) -> None:
    with lock.hold(tmp_path / "data"):
        assert lock.find_holder(tmp_path / "data") == os.getpid()
        with pytest.raises(HostError, match=rf"process {os.getpid()}\).*make stop"), lock.hold(tmp_path / "data"):
            pass


def test_whoever_is_refused_is_told_where_the_first_one_is_and_how_to_start_a_second(tmp_path: Path) -> None:
    with (
        lock.hold(tmp_path, url="http://127.0.0.1:8000/"),
        pytest.raises(HostError) as refused,
        lock.hold(tmp_path),
    ):
        pass
    words = str(refused.value)
    assert "runs already at http://127.0.0.1:8000/, on the data in" in words
    assert words.endswith("\n    CLAW_DATA_DIR=var-2 CLAW_PORT=8001 CLAW_ENGINE_PORT=8101 make run")
    assert lock.find_holder(tmp_path) is None


def test_it_can_be_held_again_once_let_go(tmp_path: Path) -> None:
    for _ in range(2):
        with lock.hold(tmp_path):
            pass
    assert lock.find_holder(tmp_path) is None


def test_nobody_holds_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert lock.find_holder(tmp_path / "nowhere") is None


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="choose another CLAW_DATA_DIR"), lock.hold(tmp_path / "file" / "data"):
        pass
