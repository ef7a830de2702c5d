"""The whole platform on real servers: it starts, notices deaths, stops, and finds everything again."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

import psutil
import psycopg
import pytest
import redis

from worker.host import health, startup, supervisor
from worker.host.errors import HostError
from worker.host.leftovers import find_leftovers, stop_leftovers
from worker.host.sockets import postgres_socket_dir, valkey_socket
from worker.host.startup import Plan, Platform
from worker.tasks.trainer_process import find_free_port


def wait_for(is_true: Callable[[], bool], *, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def bring_up(platform: Platform) -> None:
    platform.start_services()
    platform.start_engine()
    platform.start_programs()
    platform.wait_for_programs()


def connect(plan: Plan) -> "psycopg.Connection[tuple[object, ...]]":
    folder = postgres_socket_dir(plan.data_dir)
    return psycopg.connect(dbname="claw", user="postgres", host=str(folder), autocommit=True)


@contextmanager
def watching(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Watch in the background until the platform stops."""
    monkeypatch.setattr(startup, "WATCH_EVERY_S", 0.1)

    def watch() -> None:
        try:
            platform.watch()
        except HostError:
            return  # supervisord was stopped under it

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        platform.stop()
        thread.join(timeout=20)


def test_everything_starts_and_a_second_start_finds_it_again(plan: Plan, platform: Platform, said: list[str]) -> None:
    bring_up(platform)
    with connect(plan) as connection:
        connection.execute("CREATE TABLE kept (word text)")
        connection.execute("INSERT INTO kept VALUES ('still here')")
    with redis.Redis.from_url(f"unix://{valkey_socket(plan.data_dir)}") as client:
        client.set("kept", "too")
    platform.stop()
    assert find_leftovers(plan.data_dir) == []

    second = Platform(plan, say=said.append)
    try:
        bring_up(second)
        with connect(plan) as connection:
            assert connection.execute("SELECT word FROM kept").fetchone() == ("still here",)
        with redis.Redis.from_url(f"unix://{valkey_socket(plan.data_dir)}") as client:
            assert client.get("kept") == b"too"
    finally:
        second.stop()
    assert any(line.startswith("web: ready") for line in said)


def test_postgres_keeps_what_was_committed_when_it_is_killed(
    plan: Plan, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up(platform)
    with watching(platform, monkeypatch):
        with connect(plan) as connection:
            connection.execute("CREATE TABLE kept (n int)")
            connection.execute("INSERT INTO kept VALUES (1)")
        os.kill(platform.supervisor.states()["postgres"].pid, signal.SIGKILL)

        def is_back() -> bool:
            try:
                with connect(plan) as connection:
                    return connection.execute("SELECT n FROM kept").fetchone() == (1,)
            except psycopg.OperationalError:
                return False

        wait_for(is_back)


def test_a_dead_child_is_said_with_its_log_and_restarted(
    plan: Plan, platform: Platform, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up(platform)
    with watching(platform, monkeypatch):
        before = platform.supervisor.states()["web"].pid
        time.sleep(0.3)
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: any(line.startswith(("web had died", "web has died")) for line in said))
        wait_for(lambda: platform.supervisor.states()["web"].pid not in {0, before})
    words = next(line for line in said if line.startswith("web ha"))
    assert "web.log" in words


ENGINE = """
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
ThreadingHTTPServer(("127.0.0.1", {port}), SimpleHTTPRequestHandler).serve_forever()
"""
WEB = """
import signal, time, urllib.request
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
def end(*_):
    time.sleep(1)
    Path("last-word").write_text(urllib.request.urlopen("http://127.0.0.1:{port}/healthz").read().decode())
    raise SystemExit
signal.signal(signal.SIGTERM, end)
server = ThreadingHTTPServer(("127.0.0.1", {web_port}), SimpleHTTPRequestHandler)
Thread(target=server.serve_forever, daemon=True).start()
signal.pause()
"""


def test_the_engine_stops_after_whoever_has_an_answer_of_it_on_its_way(
    plan: Plan, platform: Platform, free_port: int
) -> None:
    engine_port = find_free_port()
    (plan.root / "engine.py").write_text(ENGINE.format(port=engine_port))
    (plan.root / "web.py").write_text(WEB.format(port=engine_port, web_port=free_port))
    (plan.root / "Procfile").write_text("web: ${PYTHON} web.py\nengine: ${PYTHON} engine.py\n")
    platform.plan = replace(plan, engine_port=engine_port, model="model")
    platform.start_services()
    platform.start_engine()
    platform.start_programs()
    urls = [f"http://127.0.0.1:{port}/healthz" for port in (free_port, engine_port)]
    wait_for(lambda: not any(map(health.check_http, urls)))
    platform.stop()
    assert (plan.root / "last-word").read_text() == "up"


def test_a_program_that_cannot_start_ends_the_start_with_its_log(
    plan: Plan, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "START_RETRIES", 1)
    (plan.root / "Procfile").write_text("web: ${PYTHON} -c 'raise SystemExit(\"no such setting\")'\n")
    platform.start_services()
    platform.start_programs()
    with pytest.raises(HostError, match=r"(?s)web.*no such setting"):
        platform.wait_for_programs()


def test_a_command_that_does_not_exist_is_said(plan: Plan, platform: Platform) -> None:
    (plan.root / "Procfile").write_text("web: ${PYTHON}-that-is-not-there\n")
    platform.start_services()
    with pytest.raises(HostError, match="web cannot be started"):
        platform.start_programs()


def test_what_a_killed_start_left_is_ended_by_the_next(plan: Plan, platform: Platform, said: list[str]) -> None:
    bring_up(platform)
    supervisord = psutil.Process(int((plan.data_dir / "supervisord.pid").read_text()))
    children = [child.pid for child in supervisord.children(recursive=True)]
    assert children
    supervisord.kill()
    supervisord.wait()

    second = Platform(plan, say=said.append)
    try:
        bring_up(second)
        assert not any(psutil.pid_exists(pid) for pid in children)
        assert any("left behind" in line for line in said)
    finally:
        second.stop()


def test_stopping_leaves_no_process(plan: Plan, platform: Platform) -> None:
    bring_up(platform)
    assert len(find_leftovers(plan.data_dir)) >= 4
    platform.stop()
    assert stop_leftovers(plan.data_dir) == []


def test_stopping_tells_what_has_stopped_and_the_services_stop_last(
    plan: Plan, platform: Platform, said: list[str]
) -> None:
    bring_up(platform)
    said.clear()
    platform.stop()
    assert set(said[:2]) == {"recorder: stopped", "web: stopped"}
    assert set(said[2:]) == {"postgres: stopped", "valkey: stopped"}
    log = (plan.data_dir / "logs" / "supervisord.log").read_text()
    # Left to supervisord, they would wait a second for each program that has stopped before.
    assert log.index("stopped: valkey") < log.index("received SIGTERM indicating exit request")


HOLDER = """
import json, signal, sys
from pathlib import Path
from worker.host import lock
from worker.host.startup import Plan, Platform

given = json.loads(sys.argv[1])
plan = Plan(**{**given, "root": Path(given["root"]), "data_dir": Path(given["data_dir"])})
signal.signal(signal.SIGTERM, signal.default_int_handler)
with lock.hold(plan.data_dir):
    platform = Platform(plan, say=lambda text: None)
    try:
        platform.start_services()
        print("up", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        platform.stop()
"""


def test_another_terminal_is_told_what_stops(plan: Plan) -> None:
    environment = {**os.environ, "CLAW_DATA_DIR": str(plan.data_dir)}
    given = json.dumps({**asdict(plan), "root": str(plan.root), "data_dir": str(plan.data_dir)})
    with subprocess.Popen([sys.executable, "-c", HOLDER, given], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == b"up\n"
            down = [sys.executable, "-W", "ignore", "manage.py", "down"]
            told = subprocess.check_output(down, env=environment, text=True, timeout=60)
        finally:
            holder.terminate()
    began, *ends, last = told.splitlines()
    assert began == f"stopping the platform in {plan.data_dir} (process {holder.pid}): postgres, valkey"
    assert {line.split("] ")[1] for line in ends} == {"postgres: stopped", "valkey: stopped"}
    assert last == "stopped"


@pytest.mark.parametrize("is_stopping", [False, True])
def test_another_terminal_ends_what_a_killed_platform_left_behind(plan: Plan, *, is_stopping: bool) -> None:
    environment = {**os.environ, "CLAW_DATA_DIR": str(plan.data_dir)}
    given = json.dumps({**asdict(plan), "root": str(plan.root), "data_dir": str(plan.data_dir)})
    deaf = "from worker.host.supervisor import Supervisor\nSupervisor.stop = lambda *_, **__: signal.pause()\n"
    with subprocess.Popen([sys.executable, "-c", deaf + HOLDER, given], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        supervisord = psutil.Process(int((plan.data_dir / "supervisord.pid").read_text()))
        if not is_stopping:
            supervisord.kill()
            holder.kill()
            holder.wait()
        down = [sys.executable, "-W", "ignore", "manage.py", "down"]
        with subprocess.Popen(down, env=environment, text=True, stdout=subprocess.PIPE) as told:
            assert told.stdout is not None
            if is_stopping:
                assert told.stdout.readline().startswith("stopping the platform")
                supervisord.kill()
                holder.kill()
            assert "was killed: ending what it left behind\nstopped: postgres (" in told.communicate(timeout=60)[0]
    assert find_leftovers(plan.data_dir) == []


def test_a_busy_port_is_said_before_anything_starts(plan: Plan, platform: Platform) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", plan.port))
        taken.listen()
        with pytest.raises(HostError, match=rf"(?s)port {plan.port}.*process {os.getpid()}.*CLAW_PORT"):
            platform.start_services()
    assert not (plan.data_dir / "pgdata").exists()


def test_a_long_data_directory_gets_short_sockets(plan: Plan, said: list[str]) -> None:
    long = plan.data_dir / ("x" * 60) / ("y" * 60)
    platform = Platform(replace(plan, data_dir=long), say=said.append)
    try:
        bring_up(platform)
        assert long not in postgres_socket_dir(long).parents
    finally:
        platform.stop()
