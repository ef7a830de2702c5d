"""A run's folder as the train task sees it: job and batches in, events and log out. Knows no rows, no processes."""

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from apps.core.contracts.codec import decode, encode
from apps.core.contracts.training import (
    BEATS_DIR,
    CHECKPOINTS_DIR,
    EVENTS_FILE,
    JOB_FILE,
    LOG_FILE,
    STOP_FILE,
    TrainBatch,
    TrainerEvent,
    TrainJob,
    adapter_dir,
    batch_file,
)
from worker.trainer.files import write_atomic

TAIL_BYTES = 2000
FULL_BELOW_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """One run's folder on storage that task and trainer share."""

    path: Path

    def prepare(self, job: TrainJob, *, keep_batches: Collection[int]) -> None:
        """Write the job, and sweep away what an earlier attempt left: a wish to stop, beats, batches given back."""
        (self.path / STOP_FILE).parent.mkdir(parents=True, exist_ok=True)
        (self.path / STOP_FILE).unlink(missing_ok=True)
        for path in (self.path / BEATS_DIR).glob("rank-*"):
            path.unlink()
        self.keep_batches(keep_batches)
        write_atomic(self.path / JOB_FILE, encode(job))

    def keep_batches(self, steps: Collection[int]) -> None:
        """Remove the batches of all other steps: no trainer will ask for them again."""
        kept = {self.path / batch_file(step) for step in steps}
        for path in (self.path / STOP_FILE).parent.glob("batch-*.json"):
            if path not in kept:
                path.unlink()

    def has_batch(self, step: int) -> bool:
        """Say whether the trainer was given this step's batch."""
        return (self.path / batch_file(step)).exists()

    def write_batch(self, batch: TrainBatch) -> None:
        """Give the trainer its batch, whole."""
        write_atomic(self.path / batch_file(batch.step), encode(batch))

    def has_batches(self, first: int, last: int) -> bool:
        """Say whether the trainer can train these steps again."""
        return all(map(self.has_batch, range(first, last + 1)))

    def drop_batch(self, step: int) -> None:
        """Take a batch back: before its lease is given up, so that no trainer finds it later."""
        (self.path / batch_file(step)).unlink(missing_ok=True)

    def read_beats(self) -> dict[str, float]:
        """Return when each process of the trainer last showed that it is at work: its name, and the storage's clock."""
        return {path.name: path.stat().st_mtime for path in (self.path / BEATS_DIR).glob("rank-*")}

    def drop_step(self, step: int) -> None:
        """Remove what a step made that is no version: a reward model's adapter."""
        shutil.rmtree(self.path / adapter_dir(step), ignore_errors=True)

    def drop_checkpoints(self) -> None:
        """Remove what only a run that goes on needs."""
        shutil.rmtree(self.path / CHECKPOINTS_DIR, ignore_errors=True)

    def request_stop(self) -> None:
        """Ask the trainer to end after a checkpoint."""
        (self.path / STOP_FILE).touch()

    def events(self) -> "EventTail":
        """Return a reader that begins with the first event of the run's life."""
        return EventTail(self.path / EVENTS_FILE)

    @property
    def log_path(self) -> Path:
        """Where the trainer's output goes."""
        return self.path / LOG_FILE

    def is_disk_full(self) -> bool:
        """Say whether there is no room for as much as a line."""
        return shutil.disk_usage(self.path).free < FULL_BELOW_BYTES

    def log_size(self) -> int:
        """Return the log's length, to tell this attempt's lines from earlier ones."""
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def read_log_tail(self, *, since: int) -> str:
        """Return the last lines written after byte `since`."""
        if not self.log_path.exists():
            return ""
        content = self.log_path.read_bytes()[since:]
        return content[-TAIL_BYTES:].decode(errors="replace").strip()


def list_repeatable(steps_done: int, *, keep_checkpoints: int) -> range:
    """Return the finished steps that a trainer may have to repeat, its newest checkpoints being damaged."""
    return range(max(1, steps_done - keep_checkpoints), steps_done + 1)


class EventTail:
    """Reads `events.jsonl` as it grows; a line without its newline is not there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> list[TrainerEvent]:
        """Return the events since the last call. Raises ContractError for a line that is none."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [decode(TrainerEvent, line) for line in whole.splitlines()]


def run_folder(run_id: str) -> RunFolder:
    """Return the folder of a run, which need not exist yet."""
    return RunFolder(path=_runs() / run_id)


def remove_version_folder(path: str) -> None:
    """Remove a version's files, if they lie in a run's folder: what came from elsewhere is not ours to remove."""
    folder = Path(path).resolve()
    if folder.is_relative_to(_runs().resolve()):
        shutil.rmtree(folder, ignore_errors=True)


def _runs() -> Path:
    return settings.CLAW.data_dir / "runs"
