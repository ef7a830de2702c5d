"""The launcher: what it starts, and how it judges a run by the run's own words."""

from pathlib import Path

import pytest

from apps.core.contracts.training import LOG_FILE
from tests.worker.trainer.samples import make_job
from worker.trainer.errors import TrainerError
from worker.trainer.events import EventLog, make_event, read_events
from worker.trainer.failures import leave_last_words
from worker.trainer.launch import (
    LaunchOptions,
    build_environment,
    build_launcher_argv,
    conclude,
    main,
    parse_options,
    share_environment,
)


def options(run_dir: Path, *, hostfile: str | None = None) -> LaunchOptions:
    return LaunchOptions(run_dir=run_dir, n_processes=2, master_port=29512, hostfile=hostfile, n_hosts=3)


def last_event(run_dir: Path) -> tuple[str, str]:
    event = read_events(run_dir / "events.jsonl")[-1]
    return event.kind, event.message


def test_deepspeed_starts_one_module_on_each_device(tmp_path: Path) -> None:
    argv = build_launcher_argv(options(tmp_path))
    assert argv[argv.index("--num_accelerators") + 1] == "2"
    assert argv[argv.index("--master_port") + 1] == "29512"
    assert argv[-3:] == ["--module", "worker.trainer.rank", str(tmp_path)]
    assert "--no_local_rank" in argv


def test_a_host_file_lying_on_the_machine_is_not_picked_up(tmp_path: Path) -> None:
    argv = build_launcher_argv(options(tmp_path))
    assert not Path(argv[argv.index("--hostfile") + 1]).exists()
    argv = build_launcher_argv(options(tmp_path, hostfile="/etc/hosts.ds"))
    assert argv[argv.index("--hostfile") + 1] == "/etc/hosts.ds"


def test_several_hosts_run_as_many_processes_each(tmp_path: Path) -> None:
    assert "--num_nodes" not in build_launcher_argv(options(tmp_path))
    argv = build_launcher_argv(options(tmp_path, hostfile="/etc/hosts.ds"), visible="0,1")
    assert argv[argv.index("--num_nodes") + 1] == "3"
    assert argv[argv.index("--num_accelerators") + 1] == "2"
    assert "--include" not in argv


def test_other_hosts_get_the_ranks_environment_by_a_file(tmp_path: Path) -> None:
    extra = share_environment(tmp_path, build_environment(make_job(tmp_path), n_processes=2))
    lines = Path(extra["DS_ENV_FILE"]).read_text().splitlines()
    assert {"DS_ACCELERATOR=cpu", "HF_HUB_OFFLINE=1"} <= set(lines)


def test_only_the_gpus_that_it_may_use_are_used(tmp_path: Path) -> None:
    argv = build_launcher_argv(options(tmp_path), visible="1,3,5")
    assert argv[argv.index("--include") + 1] == "localhost:1,3"
    assert "--num_accelerators" not in argv
    with pytest.raises(TrainerError, match="2 processes need as many GPUs"):
        build_launcher_argv(options(tmp_path), visible="1")


def test_ranks_on_a_cpu_share_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))
    environment = build_environment(make_job(tmp_path), n_processes=2)
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["DS_ACCELERATOR"] == "cpu"


def test_the_path_relative_to_the_caller_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_options(["here", "--processes", "3"]).run_dir == tmp_path / "here"


@pytest.mark.parametrize(("kind", "code"), [("done", 0), ("stopped", 0), ("failed", 1)])
def test_the_last_event_decides_not_the_exit_code(tmp_path: Path, kind: str, code: int) -> None:
    EventLog(tmp_path).append(make_event(kind, step=3))
    for exit_code in (0, 1, -6):
        assert conclude(tmp_path, offset=0, code=exit_code, is_stopped=False) == code
    assert len(read_events(tmp_path / "events.jsonl")) == 1


def test_a_silent_death_becomes_a_failure_in_words(tmp_path: Path) -> None:
    EventLog(tmp_path).append(make_event("step", step=2))
    (tmp_path / LOG_FILE).write_text("early\n" * 1000 + "CUDA error: device lost")
    assert conclude(tmp_path, offset=0, code=-9, is_stopped=False) == 1
    kind, message = last_event(tmp_path)
    assert kind == "failed"
    assert "killed by signal 9" in message
    assert message.endswith("CUDA error: device lost")


@pytest.mark.parametrize(("n_kernel_kills", "may_pass"), [(0, True), (1, False)])
def test_a_killed_rank_may_be_tried_again_unless_memory_was_short(
    tmp_path: Path, n_kernel_kills: int, may_pass: bool
) -> None:
    conclude(tmp_path, offset=0, code=247, is_stopped=False, n_kernel_kills=n_kernel_kills)
    event = read_events(tmp_path / "events.jsonl")[-1]
    assert event.may_pass == may_pass
    assert ("want of memory:" in event.message) != may_pass


def test_what_killed_a_process_counts_more_than_that_another_missed_it(tmp_path: Path) -> None:
    EventLog(tmp_path).append(make_event("failed", step=0, message="A process is gone.", may_pass=True))
    assert conclude(tmp_path, offset=0, code=1, is_stopped=False) == 1
    assert last_event(tmp_path)[1] == "A process is gone."
    leave_last_words(tmp_path, rank=1, words="Out of memory on the GPU.")
    assert conclude(tmp_path, offset=0, code=1, is_stopped=False) == 1
    assert last_event(tmp_path)[1] == "Out of memory on the GPU. (process 1)"
    assert not read_events(tmp_path / "events.jsonl")[-1].may_pass


def test_the_last_words_of_another_rank_are_told_and_would_come_again(tmp_path: Path) -> None:
    leave_last_words(tmp_path, rank=1, words="Out of memory on the GPU.")
    conclude(tmp_path, offset=0, code=1, is_stopped=False)
    event = read_events(tmp_path / "events.jsonl")[-1]
    assert (event.message, event.may_pass) == ("Out of memory on the GPU. (process 1)", False)


def test_a_stop_before_the_ranks_could_answer_is_a_stop(tmp_path: Path) -> None:
    assert conclude(tmp_path, offset=0, code=1, is_stopped=True) == 0
    assert last_event(tmp_path)[0] == "stopped"


def test_the_verdict_of_an_earlier_attempt_does_not_count(tmp_path: Path) -> None:
    EventLog(tmp_path).append(make_event("stopped", step=1))
    offset = (tmp_path / "events.jsonl").stat().st_size
    assert conclude(tmp_path, offset=offset, code=1, is_stopped=False) == 1
    assert last_event(tmp_path)[0] == "failed"


def test_a_job_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1
    assert "job cannot be started" in last_event(tmp_path)[1]
