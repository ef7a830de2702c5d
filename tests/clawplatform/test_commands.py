"""The commands that people type, as far as they need no platform."""

import json
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from clawplatform import doctor
from clawplatform.doctor import examine
from clawplatform.env import ROOT, Env, read_env
from clawplatform.management.commands import up
from worker.host import lock

pytestmark = pytest.mark.django_db


@pytest.fixture
def env(tmp_path: Path) -> Env:
    """Settings of a host on which nothing is installed and nothing listens."""
    with closing(socket.socket()) as one, closing(socket.socket()) as other:
        for free in (one, other):
            free.bind(("127.0.0.1", 0))
        port, engine_port = (free.getsockname()[1] for free in (one, other))
    data, python, model = (tmp_path / name for name in ("data", "python", "model"))
    return Env(
        CLAW_PORT=port, CLAW_ENGINE_PORT=engine_port, CLAW_DATA_DIR=data, CLAW_ML_PYTHON=python, CLAW_MODEL=model
    )


def test_down_says_that_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("down")
    assert "nothing runs in" in capsys.readouterr().out


def test_a_second_signal_disturbs_no_stop() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    up._answer_signals(up._interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        for number in before:
            signal.raise_signal(number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_up_is_refused_where_a_platform_runs() -> None:
    with lock.hold(read_env().data_dir), pytest.raises(CommandError, match="the platform runs already"):
        call_command("up", "--no-engine")


def test_seed_says_where_the_secrets_are(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("seed", "--engine-url", "http://127.0.0.1:8100")
    assert "credentials.json" in capsys.readouterr().out


def test_a_new_project_is_told_to_scripts_and_to_people(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("create_project", "Shop", "--agent", "Till")
    told = capsys.readouterr()
    made = json.loads(told.out)
    address = f"{read_env().public_base_url}/p/shop/"
    assert (made["project"], made["team"], made["url"]) == ("shop", "Home", address)
    assert set(made["agent_keys"]) == {"till"}
    assert told.err.startswith(f"Project 'Shop' of the team 'Home': {address}\n")
    assert "shown only now" in told.err
    assert made["manage_key"] not in told.err


def test_up_tells_of_a_misspelt_variable(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAW_PROT", "9000")
    with lock.hold(read_env().data_dir), pytest.raises(CommandError):
        call_command("up", "--no-engine")
    assert "nothing reads CLAW_PROT: do you mean CLAW_PORT?" in capsys.readouterr().out


def test_doctor_says_who_has_the_port(env: Env) -> None:
    with closing(socket.socket()) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((env.host, env.port))
        taken.listen()
        (finding,) = [finding for finding in examine(env) if finding.about == "port" and finding.level == "fault"]
    assert f"port {env.port} on {env.host}, wanted for the web process, is not free" in finding.words
    assert "port with CLAW_PORT" in finding.words


def test_manage_without_the_packages_says_what_to_run_first() -> None:
    bare = subprocess.run(
        [sys.executable, "-S", "-E", str(ROOT / "manage.py"), "doctor"], capture_output=True, text=True, check=False
    )
    assert bare.returncode == 1
    assert "run `make setup` first" in bare.stderr
    assert "Traceback" not in bare.stderr


def test_doctor_notes_a_misspelt_variable_and_lets_other_programs_names_be(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAW_PROT", "9000")
    monkeypatch.setenv("CLAW_API_KEY", "the examples' own")
    (finding,) = [finding for finding in examine(env) if finding.about == "settings"]
    assert finding.level == "note"
    assert "CLAW_PROT" in finding.words
    assert "CLAW_PORT" in finding.words


def test_doctor_finds_what_is_missing_and_says_what_to_do(env: Env) -> None:
    findings = {finding.about: finding for finding in examine(env)}
    assert findings["ml"].level == "fault"
    assert "make setup" in findings["ml"].words
    assert findings["platform"].level == "note"
    assert findings["database"].level == "ok"


def test_doctor_finds_a_platform_that_does_not_answer(env: Env) -> None:
    with lock.hold(env.data_dir):
        findings = {finding.about: finding for finding in examine(env)}
    assert findings["platform"].level == "ok"
    assert findings["web process"].level == "fault"
    assert "CLAW_PORT" in findings["web process"].words


def test_doctor_warns_of_a_full_disk(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LOW_DISK_GB", 10**9)
    findings = {finding.about: finding for finding in examine(env)}
    assert findings["disk"].level == "fault"
    assert "make room" in findings["disk"].words
