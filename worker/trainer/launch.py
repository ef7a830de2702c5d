"""Starts DeepSpeed's launcher on one rank process per device, waits, and judges the run by what it wrote.

The launcher's own exit code says little: it is 1 after every SIGTERM, and ranks have been seen to abort after their
work was done. So the verdict is the last event of this attempt; where the ranks died without a word, one is written for
them. Standard library only: it must outlive whatever torch does.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from apps.core.contracts.codec import ContractError, decode
from apps.core.contracts.training import EVENTS_FILE, JOB_FILE, LOG_FILE, TrainJob
from worker.trainer.build_locks import BUILD_FOLDER, find_build_folder, remove_dead_locks
from worker.trainer.errors import TrainerError
from worker.trainer.events import EventLog, make_event, read_events
from worker.trainer.failures import (
    count_kernel_kills,
    describe_exit,
    find_signal,
    forget_last_words,
    read_last_words,
)
from worker.trainer.files import SIGNAL_MARK, write_atomic

FINAL_KINDS = {"done": 0, "stopped": 0, "failed": 1}
POLL_S = 0.2
LOG_TAIL_BYTES = 2000
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
RANKS_ENVIRONMENT = "ranks.env"
SHARED_VARIABLES = ("DS_ACCELERATOR", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The command line, parsed."""

    run_dir: Path
    n_processes: int
    master_port: int
    hostfile: str | None
    n_hosts: int = 1


def main(argv: list[str]) -> int:
    """Run one attempt of the job in the folder; returns the exit code."""
    options = parse_options(argv)
    log = EventLog(options.run_dir)
    try:
        job = decode(TrainJob, (options.run_dir / JOB_FILE).read_bytes())
        environment = build_environment(job, n_processes=options.n_processes)
        if options.hostfile is not None:
            environment |= share_environment(options.run_dir, environment)
        launcher_argv = build_launcher_argv(options, visible=environment.get(VISIBLE_DEVICES, ""))
    except (OSError, ContractError, TrainerError) as error:
        log.append(make_event("failed", step=0, message=f"The job cannot be started: {error}"))
        return 1
    offset = _size(options.run_dir / EVENTS_FILE)
    mark = options.run_dir / SIGNAL_MARK
    mark.unlink(missing_ok=True)  # of an attempt that was killed while it stopped
    forget_last_words(options.run_dir)
    remove_dead_locks(Path(environment[BUILD_FOLDER]))
    kills_before = count_kernel_kills() or 0
    attempt = Attempt(launcher_argv, environment)
    code = attempt.wait(mark=mark)
    n_kernel_kills = (count_kernel_kills() or 0) - kills_before
    return conclude(
        options.run_dir, offset=offset, code=code, is_stopped=attempt.is_stopping, n_kernel_kills=n_kernel_kills
    )


def parse_options(argv: list[str]) -> LaunchOptions:
    """Return the options; exits with a usage message on anything unknown."""
    parser = argparse.ArgumentParser(prog="worker.trainer", description="Train one run in its folder.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--processes", type=int, default=1, help="ranks on each host")
    parser.add_argument("--master-port", type=int, default=29500)
    parser.add_argument("--hosts", type=int, default=1, help="how many of the host file's hosts")
    parser.add_argument("--hostfile", default=None, help="DeepSpeed host file; absent: this host only")
    given = parser.parse_args(argv)
    return LaunchOptions(
        run_dir=given.run_dir.resolve(),
        n_processes=given.processes,
        master_port=given.master_port,
        hostfile=given.hostfile,
        n_hosts=given.hosts,
    )


def build_launcher_argv(options: LaunchOptions, *, visible: str = "") -> list[str]:
    """Return DeepSpeed's own command line; `visible` names the GPUs that this host may use ("1,3"), "" for all.

    Raises TrainerError when there are too few.
    """
    argv = [sys.executable, "-u", "-m", "deepspeed.launcher.runner", "--no_local_rank", "--log_level", "warning"]
    argv += ["--master_port", str(options.master_port)]
    # A path that does not exist keeps a host file of the machine's own (/job/hostfile) from being picked up.
    argv += ["--hostfile", options.hostfile or str(options.run_dir / "no-hostfile")]
    if visible and options.hostfile is None:
        # Given a mere number, DeepSpeed counts from GPU 0, where the engine may be.
        devices = visible.split(",")[: options.n_processes]
        if len(devices) < options.n_processes:
            raise TrainerError(f"{options.n_processes} processes need as many GPUs; {VISIBLE_DEVICES} is {visible!r}.")
        argv += ["--include", f"localhost:{','.join(devices)}"]
    else:
        argv += ["--num_accelerators", str(options.n_processes)]
    if options.hostfile is not None:
        argv += ["--num_nodes", str(options.n_hosts)]
    return [*argv, "--module", "worker.trainer.rank", str(options.run_dir)]


def build_environment(job: TrainJob, *, n_processes: int) -> dict[str, str]:
    """Return the environment of the ranks: this one, the accelerator named, the cores shared out."""
    environment = dict(os.environ)
    environment |= {"DS_ACCELERATOR": job.device, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment[BUILD_FOLDER] = str(find_build_folder(environment))
    # DeepSpeed compiles an operator at its first use and calls `ninja`, which pip puts beside the interpreter.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    if job.device == "cpu":
        environment.pop(VISIBLE_DEVICES, None)
        n_threads = max(1, len(os.sched_getaffinity(0)) // n_processes)
        environment.setdefault("OMP_NUM_THREADS", str(n_threads))
        # The engine and the web process work on the same cores: a thread that spins while it waits takes them away.
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return environment


def share_environment(run_dir: Path, environment: dict[str, str]) -> dict[str, str]:
    """Write what the ranks on other hosts need into a file that DeepSpeed reads, and return the variable that names it.

    By itself it takes along only names that begin with PYTHON and the accelerator's own.
    """
    path = run_dir / RANKS_ENVIRONMENT
    lines = [f"{name}={environment[name]}" for name in SHARED_VARIABLES if name in environment]
    write_atomic(path, "\n".join(lines) + "\n")
    return {"DS_ENV_FILE": str(path)}


class Attempt:
    """The launcher as a child in our own process group.

    A SIGTERM to the group reaches every process of it. The outer of DeepSpeed's two launcher processes would die of it
    at once, leaving the ranks without a parent while they finish; so it inherits the signal ignored.
    """

    def __init__(self, argv: list[str], environment: dict[str, str]) -> None:
        self.is_stopping = False
        self._parent = os.getppid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        self._child = subprocess.Popen(argv, env=environment)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_stop)

    def wait(self, *, mark: Path) -> int:
        """Return the launcher's exit code. If whoever started us is gone, ask the whole group to stop.

        A signal that comes while the launcher is on its way meets no rank; `mark` tells those that start later.
        """
        while (code := self._child.poll()) is None:
            is_orphan = os.getppid() != self._parent
            if (self.is_stopping or is_orphan) and not mark.exists():
                mark.touch()
                if is_orphan and os.getpgrp() == os.getpid():
                    os.killpg(0, signal.SIGTERM)
            time.sleep(POLL_S)
        mark.unlink(missing_ok=True)
        return code

    def _note_stop(self, _signal: int, _frame: object) -> None:
        self.is_stopping = True


def conclude(run_dir: Path, *, offset: int, code: int, is_stopped: bool, n_kernel_kills: int = 0) -> int:
    """Return this attempt's exit code from its last event, writing that event if the ranks could not."""
    path = run_dir / EVENTS_FILE
    log = EventLog(run_dir)
    events = read_events(path, offset=offset)
    step = max((event.step for event in read_events(path)), default=0)
    if events and events[-1].kind in FINAL_KINDS:
        if events[-1].may_pass and (cause := _find_cause(run_dir, n_kernel_kills=n_kernel_kills)):
            log.append(make_event("failed", step=step, message=cause))
        return FINAL_KINDS[events[-1].kind]
    if is_stopped:
        log.append(make_event("stopped", step=step, message="Stopped before the step in hand was finished."))
        return 0
    words = read_last_words(run_dir)
    is_killed = not words and find_signal(code) != 0
    message = words or _with_log_tail(run_dir, describe_exit(code, n_kernel_kills=n_kernel_kills))
    log.append(make_event("failed", step=step, message=message, may_pass=is_killed and not n_kernel_kills))
    return 1


def _find_cause(run_dir: Path, *, n_kernel_kills: int) -> str:
    """Return why a process is gone that the one which speaks for all only missed, "" when nothing more is known."""
    if n_kernel_kills:
        return describe_exit(-signal.SIGKILL, n_kernel_kills=n_kernel_kills)
    return read_last_words(run_dir)


def _with_log_tail(run_dir: Path, message: str) -> str:
    log_path = run_dir / LOG_FILE
    if not log_path.exists():
        return message
    tail = log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
    return f"{message} The end of {LOG_FILE}:\n{tail}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
