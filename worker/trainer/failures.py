"""Ends that nobody planned, in words: what a rank raised, and what killed one that could say nothing.

Standard library only: the launcher reads here what the ranks left.
"""

import errno
import shutil
import signal
from pathlib import Path

from worker.trainer.errors import TrainerError
from worker.trainer.files import write_atomic

LAST_WORDS = "last-words"
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
CGROUP_EVENTS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
LESS_MEMORY = (
    "lower max_tokens_per_microbatch or lora_rank, switch gradient_checkpointing on, or raise zero_stage and use "
    "offload, then resume"
)
LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Socket closed", "Broken pipe", "NCCL")
FULL_DISK_WORDS = tuple(f"(os error {number})" for number in sorted(FULL_DISK))  # as safetensors' errors end
CPU_ALLOCATOR = "DefaultCPUAllocator"  # what torch's error for want of ordinary memory names


def describe_error(error: Exception) -> str:
    """Return what a person should read of what a rank raised."""
    if isinstance(error, TrainerError):
        return str(error)
    words = (str(error).splitlines() or [""])[0]
    if type(error).__name__ == "OutOfMemoryError":  # torch.cuda's
        return f"Out of memory on the GPU: {LESS_MEMORY}. ({words})"
    if isinstance(error, MemoryError) or CPU_ALLOCATOR in str(error):
        return f"Out of memory: {LESS_MEMORY}. ({words or 'MemoryError'})"
    if is_lost_peer(error):
        return f"A process of the trainer is gone: it was killed, or its host is away. ({words})"
    if is_disk_full(error):
        return f"The disk is full: make room for the run's folder, then resume. ({error})"
    return f"{type(error).__name__}: {error}"


def is_lost_peer(error: Exception) -> bool:
    """Say whether this rank only noticed that another one is no longer there."""
    is_of_ranks = isinstance(error, RuntimeError) and not isinstance(error, TrainerError)
    return is_of_ranks and any(words in str(error) for words in LOST_PEER)


def is_disk_full(error: Exception) -> bool:
    """Say whether a write failed for want of room."""
    is_told = any(words in str(error) for words in FULL_DISK_WORDS)
    return is_told or (isinstance(error, OSError) and error.errno in FULL_DISK)


def leave_last_words(run_dir: Path, *, rank: int, words: str) -> None:
    """Keep what a rank had to say, for the launcher to tell if rank 0 cannot."""
    folder = run_dir / LAST_WORDS
    folder.mkdir(exist_ok=True)
    write_atomic(folder / f"rank-{rank:03d}", words)


def read_last_words(run_dir: Path) -> str:
    """Return what the first rank that left words said, "" when none did."""
    for path in sorted((run_dir / LAST_WORDS).glob("rank-*")):
        number = int(path.name.removeprefix("rank-"))
        return f"{path.read_text()} (process {number})" if number else path.read_text()
    return ""


def forget_last_words(run_dir: Path) -> None:
    """Sweep away what an earlier attempt left."""
    shutil.rmtree(run_dir / LAST_WORDS, ignore_errors=True)


def count_kernel_kills() -> int | None:
    """Return how often the kernel has killed for want of memory in this container, None where it does not tell."""
    for path in CGROUP_EVENTS:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        counts = dict(line.split(maxsplit=1) for line in lines if " " in line)
        if counts.get("oom_kill", "").isdigit():
            return int(counts["oom_kill"])
    return None


def describe_exit(code: int, *, n_kernel_kills: int) -> str:
    """Say how the first process that died did, by DeepSpeed's exit code and the kernel's kills meanwhile."""
    number = find_signal(code)
    if number == signal.SIGKILL and n_kernel_kills:
        return f"The kernel killed a trainer process for want of memory: {LESS_MEMORY}."
    if number == signal.SIGKILL:
        return "A trainer process was killed by signal 9: by hand, or by the kernel for want of memory."
    if number:
        return f"A trainer process was killed by signal {number}."
    return f"The trainer ended with exit code {code} without finishing."


def find_signal(code: int) -> int:
    """Return the signal that an exit code tells of, 0 for none. DeepSpeed's is minus the signal, modulo 256."""
    number = -code if code < 0 else 256 - code
    return number if number in set(signal.valid_signals()) else 0
