"""Sockets' paths stay short enough for the kernel."""

import os
from pathlib import Path

import pytest

from worker.host.errors import HostError
from worker.host.sockets import make_socket_folder, postgres_socket_dir, socket_folder, valkey_socket

LONGEST_PATH = 107


def test_a_short_data_directory_holds_its_sockets() -> None:
    assert valkey_socket(Path("/srv/claw")) == Path("/srv/claw/valkey.sock")


def test_a_long_one_gets_a_short_folder_of_its_own() -> None:
    one, other = Path("/srv") / ("a" * 200), Path("/srv") / ("b" * 200)
    assert len(str(postgres_socket_dir(one) / ".s.PGSQL.5432.lock")) <= LONGEST_PATH
    assert valkey_socket(one) == valkey_socket(one)
    assert valkey_socket(one) != valkey_socket(other)


@pytest.fixture
def long_data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory whose short folder lies in a temporary place of this test."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path / ("z" * 200)


def test_the_short_folder_is_made_once(long_data_dir: Path) -> None:
    for _ in range(2):
        make_socket_folder(long_data_dir)
    assert socket_folder(long_data_dir).is_dir()


def test_a_short_folder_that_somebody_laid_out_is_refused(long_data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "trap").mkdir()
    socket_folder(long_data_dir).symlink_to(tmp_path / "trap")
    with pytest.raises(HostError, match="belongs to another user"):
        make_socket_folder(long_data_dir)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's folder")
def test_another_users_short_folder_is_refused(long_data_dir: Path) -> None:
    socket_folder(long_data_dir).mkdir()
    os.chown(socket_folder(long_data_dir), 12345, 12345)
    with pytest.raises(HostError, match="belongs to another user"):
        make_socket_folder(long_data_dir)
