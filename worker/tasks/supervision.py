"""Watches one trainer process: feeds it batches, acknowledges its steps, and ends it when there is reason to.

All the rows' rules are in `apps.training`; all the process's in `trainer_process`; this file only decides when. It
survives a database that is away for a while. `AttemptLost` goes through it: then the run is another worker's.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from django.db import InterfaceError, OperationalError, connection

from apps.core.contracts.training import TrainerEvent
from apps.training import attempts, leases
from apps.training.models import Attempt, RunState
from apps.training.recipes import RecipeConfig
from worker.tasks.run_folder import EventTail, RunFolder, list_repeatable
from worker.tasks.shutdown import is_worker_stopping
from worker.tasks.trainer_process import TrainerProcess

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Times in seconds."""

    poll_s: float = 0.3
    beat_s: float = 3.0
    lease_s: float = 1.0
    describe_s: float = 5.0
    start_s: float = 900.0  # the first start on a host compiles
    stop_s: float = 60.0  # a cancelled trainer's time to reach a checkpoint
    shutdown_s: float = 8.0  # the same when the worker itself must go; supervisors kill after 20 s
    kill_s: float = 5.0
    database_s: float = 120.0


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Why the trainer is being ended, and what becomes of the run. `may_pass`: another attempt may go better."""

    run_state: RunState
    grace_s: float
    error: str = ""
    may_pass: bool = False


class Supervision:
    """One attempt from the trainer's start to its end."""

    def __init__(
        self,
        attempt: Attempt,
        *,
        folder: RunFolder,
        process: TrainerProcess,
        events: "EventReader",
        recipe: RecipeConfig,
        limits: Limits,
    ) -> None:
        self._attempt = attempt
        self._folder = folder
        self._process = process
        self._events = events
        self._recipe = recipe
        self._limits = limits
        self._log_start = folder.log_size()
        self._ending: Ending | None = None
        self._ending_since = 0.0
        self._waiting_since: float | None = None
        self._beats = BeatWatch(folder)
        self._given_at = 0.0
        self._is_starting = False  # with a batch that waits for it
        self._due: dict[str, float] = {}
        self._database_away_since: float | None = None

    def supervise(self) -> None:
        """Watch until the trainer has ended, then close the attempt."""
        while (code := self._process.poll()) is None:
            self._try_with_database(self._tick)
            time.sleep(self._limits.poll_s)
        self._process.kill()
        while not self._try_with_database(lambda: self._close(code)):
            time.sleep(self._limits.poll_s)

    def _try_with_database(self, action: Callable[[], None]) -> bool:
        """Do something that needs the database. False while it is away; raises when it stays away."""
        try:
            action()
        except (OperationalError, InterfaceError) as error:
            connection.close()
            now = time.monotonic()
            self._database_away_since = self._database_away_since or now
            log.warning("train.database_away", run=self._attempt.run_id, error=str(error))
            if now - self._database_away_since > self._limits.database_s:
                raise
            return False
        self._database_away_since = None
        return True

    def _tick(self) -> None:
        if self._is_due("beat", self._limits.beat_s):
            state = attempts.beat_attempt(self._attempt)
            if state == RunState.CANCELLING:
                self._end(RunState.CANCELLED, grace_s=self._limits.stop_s)
        self._events.acknowledge_new()
        if self._ending is not None:
            self._press(self._ending)
        elif is_worker_stopping():
            self._end(RunState.QUEUED, grace_s=self._limits.shutdown_s, error="the worker was asked to stop")
        elif words := self._describe_disagreement():
            self._end(RunState.FAILED, grace_s=0, error=words)
        elif words := self._describe_hang():
            self._end(RunState.FAILED, grace_s=0, error=words, may_pass=True)
        else:
            self._feed()

    def _is_due(self, name: str, every_s: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(name, 0.0):
            return False
        self._due[name] = now + every_s
        return True

    def _end(self, run_state: RunState, *, grace_s: float, error: str = "", may_pass: bool = False) -> None:
        if self._ending is None:
            if self._events.ready_at is None:
                grace_s = 0.0  # nothing is under way that could be kept
            log.info("trainer.ending", run=self._attempt.run_id, becomes=str(run_state), reason=error)
            self._ending = Ending(run_state=run_state, grace_s=grace_s, error=error, may_pass=may_pass)
            self._ending_since = time.monotonic()
            self._folder.request_stop()

    def _press(self, ending: Ending) -> None:
        """First a file asks, then SIGTERM, then SIGKILL."""
        waited = time.monotonic() - self._ending_since
        if waited > ending.grace_s + self._limits.kill_s:
            self._process.kill()
        elif waited > ending.grace_s and self._is_due("terminate", self._limits.kill_s):
            self._process.terminate()

    def _describe_disagreement(self) -> str:
        """A trainer that went back to an older checkpoint is well if it still has the batches of the steps since."""
        stands, done = self._events.ready_at, self._events.steps_done_before
        if stands is None or stands == done or (stands < done and self._folder.has_batches(stands + 1, done)):
            return ""
        return (
            f"the trainer stands at step {stands}, the run at step {done}: its checkpoint is not in the run's folder "
            "(any more); launch a new run"
        )

    def _describe_hang(self) -> str:
        now = time.monotonic()
        if self._events.ready_at is None:
            is_hung = now - self._events.news_at > self._limits.start_s
            return f"the trainer was not ready after {self._limits.start_s:.0f} s" if is_hung else ""
        step = self._events.steps_done + 1
        if not self._folder.has_batch(step):
            return ""
        if now - max(self._events.news_at, self._given_at) > self._recipe.step_limit_s:
            return f"the trainer did not finish step {step} in {self._recipe.step_limit_s:.0f} s"
        if silent := self._beats.find_silent(longer_than_s=self._recipe.silence_limit_s):
            return f"{silent} of the trainer shows no sign of work in step {step}: it hangs"
        return ""

    def _feed(self) -> None:
        step = self._events.steps_done + 1
        if self._is_starting and self._events.ready_at is not None:
            self._tell_step(step)
        if (
            step > self._recipe.n_steps
            or self._folder.has_batch(step)
            or not self._is_due("lease", self._limits.lease_s)
        ):
            return
        batch = leases.lease_batch(self._attempt, step=step)
        if batch is None:
            self._wait_for_data()
            return
        self._folder.write_batch(batch)
        repeatable = list_repeatable(step - 1, keep_checkpoints=self._recipe.keep_checkpoints)
        self._folder.keep_batches([*repeatable, step])
        self._given_at, self._waiting_since = time.monotonic(), None
        self._tell_step(step)

    def _tell_step(self, step: int) -> None:
        words = f"trains step {step} of {self._recipe.n_steps}"
        self._is_starting = self._events.ready_at is None
        if self._is_starting:
            words = f"the trainer starts (the first one on a host compiles, for some minutes), then {words}"
        attempts.set_status(self._attempt, words)

    def _wait_for_data(self) -> None:
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        is_over = now - self._waiting_since > self._recipe.wait_for_data_s
        if not is_over and not self._is_due("describe", self._limits.describe_s):
            return
        if words := leases.describe_failed_version(self._attempt.run_id):
            self._end(RunState.FAILED, grace_s=self._limits.stop_s, error=words)
            return
        words = leases.describe_wait(self._attempt)
        attempts.set_status(self._attempt, f"waits for trajectories: {words}")
        if is_over:
            error = f"waited {self._recipe.wait_for_data_s:.0f} s for trajectories to train on: {words}"
            self._end(RunState.FAILED, grace_s=self._limits.stop_s, error=error)

    def _close(self, code: int) -> None:
        self._events.acknowledge_new()
        ending = self._ending or self._judge_death(code)
        run_state, error = ending.run_state, ending.error
        if self._events.steps_done >= self._recipe.n_steps:
            run_state, error = RunState.SUCCEEDED, ""
            self._folder.drop_checkpoints()
        elif ending.may_pass and attempts.count_crashes(self._attempt) < self._recipe.restarts:
            attempts.crash_attempt(self._attempt, error=error, exit_code=code)
            return
        if run_state != RunState.QUEUED:
            self._folder.drop_batch(self._events.steps_done + 1)
        attempts.end_attempt(self._attempt, run_state=run_state, error=error, exit_code=code)

    def _judge_death(self, code: int) -> Ending:
        if failure := self._events.failure:
            return Ending(run_state=RunState.FAILED, grace_s=0, error=failure.message, may_pass=failure.may_pass)
        return Ending(run_state=RunState.FAILED, grace_s=0, error=self._describe_death(code), may_pass=True)

    def _describe_death(self, code: int) -> str:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if self._folder.is_disk_full():
            how += ", and the disk of the run's folder is full"
        tail = self._folder.read_log_tail(since=self._log_start)
        return f"the trainer {how} before its last step" + (f"; the end of its log:\n{tail}" if tail else "")


class BeatWatch:
    """Notices when a process of the trainer stops showing that it works. Compares no clocks: it sees changes only."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[float, float]] = {}  # process → its beat, and when we first saw that one

    def find_silent(self, *, longer_than_s: float) -> str:
        """Return the process that has been silent for longest, if that is too long, else ""."""
        now = time.monotonic()
        for name, beat in self._folder.read_beats().items():
            if self._seen.get(name, (0.0, 0.0))[0] != beat:
                self._seen[name] = (beat, now)
        silent = {name: now - at for name, (_, at) in self._seen.items() if now - at > longer_than_s}
        if not silent:
            return ""
        name = max(sorted(silent), key=lambda one: silent[one])
        return f"process {int(name.removeprefix('rank-'))}"


class EventReader:
    """Takes the trainer's events one by one; each is done with only when the database has it."""

    def __init__(self, attempt: Attempt, tail: EventTail) -> None:
        self._attempt = attempt
        self._tail = tail
        self._pending: deque[TrainerEvent] = deque()
        self.steps_done = attempt.run.steps_done
        self.steps_done_before = self.steps_done
        self.ready_at: int | None = None
        self.failure: TrainerEvent | None = None
        self.news_at = time.monotonic()

    def catch_up(self) -> None:
        """Acknowledge steps that an earlier attempt finished but whose worker died before it could say so."""
        self.acknowledge_new()
        self.ready_at, self.failure, self.steps_done_before = None, None, self.steps_done

    def acknowledge_new(self) -> None:
        """Handle what came since the last call, in order. An event whose handling failed stays first in line."""
        self._pending.extend(self._tail.read_new())
        while self._pending:
            self._handle(self._pending[0])
            self._pending.popleft()

    def _handle(self, event: TrainerEvent) -> None:
        self.news_at = time.monotonic()
        if event.kind == "step":
            self.steps_done = leases.acknowledge_step(self._attempt, event)
        elif event.kind == "ready":
            self.ready_at, self.steps_done_before = event.step, self.steps_done
            if event.message:
                attempts.note_fallback(self._attempt, event.message)
        elif event.kind == "failed":
            self.failure = event
