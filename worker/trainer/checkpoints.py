"""Checkpoints of a run: weights and optimizer by DeepSpeed, the position and the step's event in `state.json`.

A checkpoint is built under a name that is never looked for and renamed when complete, so a half-written one is never
picked up. The newest two are kept. Knows nothing of what is trained.
"""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.core.contracts.codec import ContractError, decode, encode
from apps.core.contracts.training import TrainerEvent, checkpoint_dir
from worker.trainer.errors import TrainerError
from worker.trainer.files import partial_of, publish_folder, write_atomic
from worker.trainer.ranks import Ranks

KEEP = 2
TAG = "engine"
STATE_FILE = "state.json"
NAME = re.compile(r"step-(\d{6})")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint and its `step` event, which is told again if a crash kept it out of the events' file."""

    path: Path
    step: int
    event: TrainerEvent


def save_checkpoint(engine: Any, *, run_dir: Path, event: TrainerEvent, ranks: Ranks) -> None:
    """Write the checkpoint after `event.step`; all ranks call it."""
    folder = run_dir / checkpoint_dir(event.step)
    partial = partial_of(folder)
    if ranks.is_main:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    ranks.barrier()
    engine.save_checkpoint(str(partial), tag=TAG, save_latest=False, exclude_frozen_parameters=True)
    ranks.barrier()
    if ranks.is_main:
        state = {"n_ranks": ranks.count, "event": encode(event)}
        write_atomic(partial / STATE_FILE, json.dumps(state))
        publish_folder(folder)
        _drop_old(folder.parent)
    ranks.barrier()


def find_checkpoint(run_dir: Path, *, n_ranks: int) -> Checkpoint | None:
    """Return the newest complete checkpoint. Raises TrainerError if it is damaged or of another number of ranks."""
    folders = _list(run_dir / "checkpoints")
    if not folders:
        return None
    path = folders[-1]
    try:
        state = json.loads((path / STATE_FILE).read_text())
        event, saved_ranks = decode(TrainerEvent, state["event"]), int(state["n_ranks"])
    except (OSError, ValueError, KeyError, TypeError, ContractError) as error:
        raise TrainerError(
            f"The checkpoint {path.name} is damaged ({error}); move it away to go on from the one before."
        ) from error
    if saved_ranks != n_ranks:
        raise TrainerError(
            f"The checkpoint {path.name} was written by {saved_ranks} processes; now there are {n_ranks}."
        )
    return Checkpoint(path=path, step=event.step, event=event)


def load_checkpoint(engine: Any, checkpoint: Checkpoint) -> None:
    """Put weights and optimizer state back. Raises TrainerError if they cannot be read."""
    try:
        # Not strict: the frozen base is not in the checkpoint.
        path, _ = engine.load_checkpoint(str(checkpoint.path), tag=TAG, load_module_strict=False)
    except Exception as error:  # torch raises whatever the damaged bytes lead it to
        raise TrainerError(
            f"The checkpoint {checkpoint.path.name} cannot be read ({type(error).__name__}: {error}); "
            "move it away to go on from the one before."
        ) from error
    if path is None:
        raise TrainerError(f"The checkpoint {checkpoint.path.name} lacks its weights.")


def _list(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if NAME.fullmatch(path.name))


def _drop_old(folder: Path) -> None:
    for path in _list(folder)[:-KEEP]:
        shutil.rmtree(path)
    for leftover in folder.glob(".*.partial"):
        shutil.rmtree(leftover)
