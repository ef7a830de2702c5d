"""Checkpoints of a run: weights and optimizer by DeepSpeed, the position and the step's event in `state.json`.

A checkpoint is built under a name that is never looked for and renamed when complete, so a half-written one is never
picked up; the checksums of its files show damage later, and then the one before it serves. The step is the position in
the data, and what chance there is is drawn from the job's seed and the step: nothing else needs to be kept. Knows
nothing of what is trained.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.core.contracts.codec import ContractError, decode, encode
from apps.core.contracts.training import CHECKPOINTS_DIR, TrainerEvent, checkpoint_dir
from worker.trainer.errors import TrainerError
from worker.trainer.failures import is_disk_full
from worker.trainer.files import partial_of, publish_folder, write_atomic
from worker.trainer.ranks import Ranks

TAG = "engine"
STATE_FILE = "state.json"
NAME = re.compile(r"step-(\d{6})")
BEST: Mapping[str, Callable[[float], float]] = {
    "loss": lambda value: -value,
    "reward_mean": lambda value: value,
}  # a metric, and how good a value of it is


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which checkpoints stay: the newest `n_last`, and the best one by `best` (a key of BEST, or "none")."""

    n_last: int
    best: str


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint and its `step` event, which is told again if a crash kept it out of the events' file."""

    path: Path
    step: int
    event: TrainerEvent
    passed_over: tuple[str, ...] = ()
    """Why newer ones were not taken."""


class _Damaged(Exception):
    """This checkpoint cannot be used; the message says why."""


def save_checkpoint(engine: Any, *, run_dir: Path, event: TrainerEvent, retention: Retention, ranks: Ranks) -> None:
    """Write the checkpoint after `event.step`; all ranks call it. Raises TrainerError when it cannot be written."""
    folder = run_dir / checkpoint_dir(event.step)
    partial = partial_of(folder)
    try:
        _write(engine, folder, event=event, ranks=ranks)
    except (OSError, RuntimeError) as error:  # torch's own writer wraps the system's errors
        shutil.rmtree(partial, ignore_errors=True)  # room for what must still be said
        raise TrainerError(_describe_failure(error, folder)) from error
    if ranks.is_main:
        _drop_old(folder.parent, retention=retention)
    ranks.barrier()


def _write(engine: Any, folder: Path, *, event: TrainerEvent, ranks: Ranks) -> None:
    partial = partial_of(folder)
    if ranks.is_main:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    ranks.barrier()
    engine.save_checkpoint(str(partial), tag=TAG, save_latest=False, exclude_frozen_parameters=True)
    ranks.barrier()
    if ranks.is_main:
        state = {"n_ranks": ranks.count, "event": encode(event), "files": _hash_files(partial)}
        write_atomic(partial / STATE_FILE, json.dumps(state))
        publish_folder(folder)


def _describe_failure(error: Exception, folder: Path) -> str:
    free = shutil.disk_usage(folder.parent).free
    why = "the disk is full" if is_disk_full(error) else str(error).splitlines()[0]
    return (
        f"The checkpoint {folder.name} could not be written: {why} ({free / 2**30:.1f} GiB are free). The one before "
        "is whole: make room, keep fewer checkpoints, or give the run's folder another disk, then resume."
    )


def find_checkpoint(run_dir: Path, *, n_ranks: int) -> Checkpoint | None:
    """Return the newest whole checkpoint, None when there never was one.

    Raises TrainerError if all are damaged, or it is of another number of ranks.
    """
    folders = _list(run_dir / CHECKPOINTS_DIR)
    passed_over: list[str] = []
    for path in reversed(folders):
        try:
            event, saved_ranks = _read(path)
        except _Damaged as error:
            passed_over.append(f"The checkpoint {path.name} is damaged ({error}).")
            continue
        if saved_ranks != n_ranks:
            raise TrainerError(
                f"The checkpoint {path.name} was written by {saved_ranks} processes; now there are {n_ranks}."
            )
        return Checkpoint(path=path, step=event.step, event=event, passed_over=tuple(passed_over))
    if passed_over:
        raise TrainerError(" ".join([*passed_over, "No whole one is left: launch a new run from the last version."]))
    return None


def _read(path: Path) -> tuple[TrainerEvent, int]:
    """Return the checkpoint's event and number of ranks, its files compared with their checksums."""
    try:
        state = json.loads((path / STATE_FILE).read_text())
        event, n_ranks, files = decode(TrainerEvent, state["event"]), int(state["n_ranks"]), dict(state["files"])
        found = _hash_files(path)
    except (OSError, ValueError, KeyError, TypeError, ContractError) as error:
        raise _Damaged(f"its {STATE_FILE} or a file cannot be read: {error}") from error
    if missing := sorted(files.keys() - found.keys()):
        raise _Damaged(f"{missing[0]} is missing")
    for name, checksum in files.items():
        if found[name] != checksum:
            raise _Damaged(f"the checksum of {name} differs")
    return event, n_ranks


def _hash_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file but the state's own, by its name inside the folder."""
    sums = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != STATE_FILE:
            with path.open("rb") as file:
                sums[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def step_of(name: str) -> int:
    """Return the step of a checkpoint's folder, by its name."""
    return int(name.removeprefix("step-"))


def load_checkpoint(engine: Any, folder: Path) -> None:
    """Put weights and optimizer state back. Raises TrainerError if they cannot be read."""
    try:
        # Not strict: the frozen base is not in the checkpoint.
        path, _ = engine.load_checkpoint(str(folder), tag=TAG, load_module_strict=False)
    except Exception as error:  # torch raises whatever the bytes lead it to
        raise TrainerError(
            f"The checkpoint {folder.name} is whole but does not fit ({type(error).__name__}: {error}): it was "
            "written with other settings or another version of DeepSpeed. Launch a new run from the last version."
        ) from error
    if path is None:
        raise TrainerError(f"The checkpoint {folder.name} lacks its weights.")


def _list(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if NAME.fullmatch(path.name))


def _drop_old(folder: Path, *, retention: Retention) -> None:
    paths = _list(folder)
    kept = set(paths[-retention.n_last :])
    if retention.best != "none":
        kept.add(_find_best(paths, by=retention.best))
    for path in paths:
        if path not in kept:
            shutil.rmtree(path)
    for leftover in folder.glob(".*.partial"):
        shutil.rmtree(leftover)


def _find_best(paths: Sequence[Path], *, by: str) -> Path:
    """Return the checkpoint with the best metric, the newer of equals. The best so far is always among those kept."""
    return max(paths, key=lambda path: (_goodness(path, by=by), path.name))


def _goodness(path: Path, *, by: str) -> float:
    try:
        event = decode(TrainerEvent, json.loads((path / STATE_FILE).read_text())["event"])
    except (OSError, ValueError, KeyError, TypeError, ContractError):
        return float("-inf")
    return BEST[by](event.metrics[by]) if by in event.metrics else float("-inf")
