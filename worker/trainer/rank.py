"""One rank: joins the others, runs the loop, and turns how it ended into an event and an exit code.

Started by DeepSpeed's launcher as `python -m worker.trainer.rank RUN_DIR`.
"""

import fcntl
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from apps.core.contracts.codec import decode
from apps.core.contracts.training import JOB_FILE, TrainJob
from worker.trainer.errors import StopRequested, TrainerError
from worker.trainer.events import EventLog, make_event
from worker.trainer.failures import describe_error, is_lost_peer, leave_last_words
from worker.trainer.loop import run_job
from worker.trainer.ranks import process_group

LOCK_FILE = "trainer.lock"
LOCK_WAIT_S = 30

logger = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    """Run this rank's part of the job in the folder; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", force=True)
    run_dir = Path(argv[0])
    job = decode(TrainJob, (run_dir / JOB_FILE).read_bytes())
    with process_group(run_dir, device=job.device) as ranks:
        log = EventLog(run_dir)
        try:
            with held_alone(run_dir, is_holder=ranks.is_main):
                run_job(job, run_dir=run_dir, log=log, ranks=ranks)
        except StopRequested:
            kind, message, code, may_pass = "stopped", "Stopped as asked; the last finished step is kept.", 0, False
        except Exception as error:  # the edge of the process: whatever it is must reach the person who waits
            if not isinstance(error, TrainerError):
                logger.exception("trainer.crashed")
            kind, message, code, may_pass = "failed", describe_error(error), 1, is_lost_peer(error)
            if not may_pass:
                leave_last_words(run_dir, rank=ranks.index, words=message)
        else:
            return 0
        if ranks.is_main:
            log.append(make_event(kind, step=_last_step(log), message=message, may_pass=may_pass))
        return code


@contextmanager
def held_alone(run_dir: Path, *, is_holder: bool) -> Iterator[None]:
    """Hold the run's lock: two trainers in one folder would tear each other's files. The kernel frees it on death."""
    with (run_dir / LOCK_FILE).open("a") as file:
        deadline = time.monotonic() + LOCK_WAIT_S
        while is_holder and not _try_lock(file.fileno()):
            if time.monotonic() > deadline:
                raise TrainerError("Another trainer process is still at work in this run's folder.")
            time.sleep(0.5)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _last_step(log: EventLog) -> int:
    return max((event.step for event in log.read() if event.kind == "step"), default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
