"""What a person reads when a trainer ends badly."""

import errno
from pathlib import Path

import pytest

from worker.trainer import failures
from worker.trainer.errors import TrainerError
from worker.trainer.failures import (
    count_kernel_kills,
    describe_error,
    describe_exit,
    forget_last_words,
    leave_last_words,
    read_last_words,
)


class OutOfMemoryError(RuntimeError):
    """Called as torch.cuda's, which is not in this environment; its own stands in ml/test_failures.py."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TrainerError("The loss is NaN."), "The loss is NaN."),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "Out of memory on the GPU: lower max_tokens"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "Out of memory: lower max_tokens"),
        (MemoryError(), "gradient_checkpointing on"),
        (RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer"), "process of the trainer is gone"),
        (OSError(errno.ENOSPC, "No space left on device"), "The disk is full: make room"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_an_error_says_what_to_do(error: Exception, words: str) -> None:
    assert words in describe_error(error)


@pytest.mark.parametrize(
    ("code", "n_kernel_kills", "words"),
    [
        (247, 1, "The kernel killed a trainer process for want of memory: lower max_tokens"),
        (-9, 0, "killed by signal 9: by hand, or by the kernel"),
        (245, 0, "killed by signal 11"),
        (3, 0, "ended with exit code 3"),
    ],
)
def test_a_death_without_words_is_told_by_its_exit_code(code: int, n_kernel_kills: int, words: str) -> None:
    assert words in describe_exit(code, n_kernel_kills=n_kernel_kills)


def test_the_first_rank_that_left_words_is_quoted(tmp_path: Path) -> None:
    assert read_last_words(tmp_path) == ""
    leave_last_words(tmp_path, rank=1, words="Out of memory.")
    assert read_last_words(tmp_path) == "Out of memory. (process 1)"
    leave_last_words(tmp_path, rank=0, words="No disk.")
    assert read_last_words(tmp_path) == "No disk."
    forget_last_words(tmp_path)
    assert read_last_words(tmp_path) == ""


@pytest.mark.parametrize(("text", "n"), [("low 0\noom 3\noom_kill 2\n", 2), ("oom_kill_disable 0\n", None), ("", None)])
def test_the_kernels_own_count_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, n: int | None
) -> None:
    monkeypatch.setattr(failures, "CGROUP_EVENTS", (tmp_path / "none", tmp_path / "events"))
    (tmp_path / "events").write_text(text)
    assert count_kernel_kills() == n
