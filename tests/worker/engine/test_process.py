"""A command run to its end: signals pass, the exit code comes back, and nothing of its family stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1] + ".part", "w").write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""
SHARES = """
import os, sys
from multiprocessing.shared_memory import SharedMemory
kept = SharedMemory(create=True, size=16)
open(os.path.join(os.path.dirname(sys.argv[1]), "name"), "w").write(kept.name)
"""
RUN = (
    "import os, signal, sys\n"
    "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"  # a test run in the background starts deaf to it
    "from worker.engine.process import run_to_the_end\n"
    "sys.exit(run_to_the_end([sys.executable, '-c', *sys.argv[1:]], dict(os.environ), niceness=3))"
)


def run(*words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", RUN, *words], cwd=Path(__file__).parents[3])


def read_pids(path: Path) -> tuple[int, int]:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    server, core = path.read_text().split()
    return int(server), int(core)


def wait_until_gone(*pids: int) -> None:
    deadline = time.monotonic() + 20
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() < deadline, "something stayed behind"
        time.sleep(0.02)


def weight_of(pid: int) -> str:
    """The niceness of the process's whole session, "3" where the kernel weighs none."""
    autogroup = Path(f"/proc/{pid}/autogroup")
    return autogroup.read_text().split()[-1] if autogroup.exists() else "3"


def test_the_exit_code_comes_back() -> None:
    assert run("raise SystemExit(7)").wait(timeout=20) == 7


def test_the_command_and_its_family_yield_to_others_once_it_is_up(tmp_path: Path) -> None:
    own, pids, up = os.nice(0), tmp_path / "pids", tmp_path / "up"
    once = "once_up=lambda: open(sys.argv[3], 'a').write('told')"
    yields = RUN.replace(
        "niceness=3", f"niceness=3, is_up=lambda: os.path.exists(sys.argv[3]), {once}, ask_every_s=0.05"
    )
    words = [sys.executable, "-c", yields, FAMILY, str(pids), str(up)]
    runner = subprocess.Popen(words, cwd=Path(__file__).parents[3])
    family = [psutil.Process(pid) for pid in read_pids(pids)]
    try:
        assert [process.nice() for process in family] == [own, own]
        up.touch()
        deadline = time.monotonic() + 20
        while [process.nice() for process in family] != [own + 3, own + 3] or weight_of(family[0].pid) != "3":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert os.getsid(family[0].pid) == family[0].pid
        assert up.read_text() == "told"
    finally:
        runner.terminate()
        runner.wait()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_reaches_the_command_and_its_family_ends(tmp_path: Path, number: signal.Signals, code: int) -> None:
    runner = run(FAMILY, str(tmp_path / "pids"))
    pids = read_pids(tmp_path / "pids")
    runner.send_signal(number)
    assert runner.wait(timeout=20) in {code, 1}
    wait_until_gone(*pids)


def test_a_command_that_lost_a_signal_is_told_again(tmp_path: Path) -> None:
    often = RUN.replace("niceness=3", "ask_every_s=0.1")
    loses_one = "import signal; signal.signal(15, lambda *_: signal.signal(15, signal.SIG_DFL))\n"
    words = [sys.executable, "-c", often, loses_one + FAMILY, str(tmp_path / "pids")]
    runner = subprocess.Popen(words, cwd=Path(__file__).parents[3])
    pids = read_pids(tmp_path / "pids")
    runner.terminate()
    assert runner.wait(timeout=20) == 143
    wait_until_gone(*pids)


def test_a_killed_server_leaves_no_family(tmp_path: Path) -> None:
    runner = run(FAMILY, str(tmp_path / "pids"))
    server, core = read_pids(tmp_path / "pids")
    os.kill(server, signal.SIGKILL)
    assert runner.wait(timeout=20) == 128 + signal.SIGKILL
    wait_until_gone(server, core)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_killed_runner_takes_the_server_with_it(tmp_path: Path) -> None:
    runner = run(FAMILY, str(tmp_path / "pids"))
    server, core = read_pids(tmp_path / "pids")
    runner.kill()
    runner.wait()
    wait_until_gone(server)
    os.kill(core, signal.SIGKILL)


def test_a_family_that_does_nothing_any_more_is_ended_and_so_is_the_memory_that_it_shared(tmp_path: Path) -> None:
    runs_dead = RUN.replace("niceness=3", "is_dead=lambda: os.path.exists(sys.argv[2]), ask_every_s=0.1")
    pids = tmp_path / "pids"
    words = [sys.executable, "-c", runs_dead, SHARES + FAMILY, str(pids)]
    runner = subprocess.Popen(words, cwd=Path(__file__).parents[3], stderr=subprocess.PIPE)
    server, core = read_pids(pids)
    _, said = runner.communicate(timeout=20)
    assert runner.returncode == 137
    assert b"its engine is dead" in said
    wait_until_gone(server, core)
    assert not Path("/dev/shm", (tmp_path / "name").read_text()).exists()  # noqa: S108  where Linux has it
