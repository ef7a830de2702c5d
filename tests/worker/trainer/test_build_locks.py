"""Locks of operators that were being built: a killed builder's goes, a living one's stays."""

import subprocess
import sys
from pathlib import Path

import pytest

from worker.trainer.build_locks import PROCESSES, find_build_folder, remove_dead_locks

BUILDER = "import os, sys; os.open(sys.argv[1], os.O_CREAT | os.O_EXCL); print(flush=True); sys.stdin.read()"


def start_builder(lock: Path) -> "subprocess.Popen[bytes]":
    """Start a process that takes the lock as torch does."""
    lock.parent.mkdir(parents=True)
    builder = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert builder.stdout is not None
    assert builder.stdout.readline()
    return builder


@pytest.mark.skipif(not PROCESSES.is_dir(), reason="only Linux tells which process has a file open")
def test_the_lock_of_a_killed_build_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    killed, living = tmp_path / "py311_cpu/first/lock", tmp_path / "py311_cpu/second/lock"
    with start_builder(killed) as dying, start_builder(living) as builder:
        dying.kill()
        dying.wait()
        remove_dead_locks(tmp_path)
        assert not killed.exists()
        assert living.exists()
        builder.kill()


def test_nothing_was_ever_built(tmp_path: Path) -> None:
    remove_dead_locks(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []


def test_each_installation_builds_in_a_folder_of_its_own_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_build_folder({"TORCH_EXTENSIONS_DIR": str(tmp_path)}) == tmp_path
    ours = find_build_folder({})
    assert ours.parent == Path.home() / ".cache" / "torch_extensions"
    monkeypatch.setattr(sys, "prefix", "/elsewhere")
    assert find_build_folder({}) != ours
