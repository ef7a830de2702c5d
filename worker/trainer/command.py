"""How a trainer is started: the command line and the extra environment, for whoever supervises the process.

Imports neither torch nor DeepSpeed: the train task builds its command here, in the web environment. Start it as the
leader of its own process group (`start_new_session=True`), with both streams in `trainer.log`. Then

- SIGTERM to the group, or the file `inbox/stop`, ends it after the last finished step: event `stopped`, exit code 0;
- SIGKILL to the group ends the launcher and every rank at once; a new start in the same folder goes on;
- exit code 0 means that the last event is `done` or `stopped`; anything else that the last event is `failed`.
"""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def build_command(
    python: str,
    run_dir: Path | str,
    *,
    n_processes: int,
    master_port: int,
    hostfile: str | None = None,
    n_hosts: int = 1,
) -> tuple[list[str], dict[str, str]]:
    """Return the argument list (first `python`, of the ML environment) and the variables to add to the environment.

    `n_processes` ranks run on this host or, with a `hostfile` (DeepSpeed's format, shared storage assumed), on each of
    its first `n_hosts`. `master_port` must be free: ranks of two runs that meet on one port would wait for each other.
    """
    if n_processes < 1:
        raise ValueError(f"n_processes must be at least 1, not {n_processes}")
    argv = [python, "-u", "-m", "worker.trainer", str(run_dir)]
    argv += ["--processes", str(n_processes), "--master-port", str(master_port)]
    if hostfile is not None:
        argv += ["--hostfile", hostfile, "--hosts", str(n_hosts)]
    return argv, {"PYTHONPATH": str(REPOSITORY)}
