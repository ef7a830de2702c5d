"""The settings' readers and the file that shows them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clawplatform.env import ROOT, BadSettings, Env, check_names, make_folder, read_env, read_secret_key


def read(**values: Any) -> Env:
    return Env(**values)


def test_the_example_file_names_every_setting_and_no_other() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    shown = {line.partition("=")[0] for line in lines if line and not line.startswith("#")}
    read_by_set_up = set(re.findall(r'read_setting\("(\w+)"\)', (ROOT / "setup" / "bootstrap.py").read_text()))
    assert read_by_set_up >= {"CLAW_ML", "CLAW_CACHE_DIR"}
    assert shown == {field.alias for field in Env.model_fields.values()} | read_by_set_up


def test_the_example_file_shows_the_defaults() -> None:
    from_file = read(_env_file=ROOT / ".env.example")
    defaults = read(_env_file=None)
    for name in Env.model_fields.keys() - {"data_dir", "ml_python", "database_url", "redis_url"}:  # set by the test run
        assert getattr(from_file, name) == getattr(defaults, name), name


def test_folders_are_absolute_wherever_a_process_starts(tmp_path: Path) -> None:
    assert read(CLAW_DATA_DIR="var", CLAW_CACHE_DIR="~/cache").data_dir.is_absolute()


@pytest.mark.parametrize(
    ("values", "hosts"),
    [
        ({}, []),
        ({"CLAW_HOST": "10.0.0.7"}, ["10.0.0.7"]),
        ({"CLAW_BASE_URL": "https://claw.example:8443/"}, ["claw.example"]),
        ({"CLAW_BASE_URL": "http://[fd00::1]:8000"}, ["[fd00::1]"]),
        ({"CLAW_BASE_URL": "https://claw.example", "CLAW_ALLOWED_HOSTS": "a.example, b.example"},
         ["claw.example", "a.example", "b.example"]),
    ],
)  # fmt: skip
def test_the_console_answers_under_its_own_names_and_those_that_are_named(
    values: dict[str, str], hosts: list[str]
) -> None:
    assert set(read(**values).hosts) == {"127.0.0.1", "localhost", "[::1]", *hosts}


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:80"), ("0.0.0.0", "http://127.0.0.1:80"), ("::", "http://[::1]:80")],  # noqa: S104
)
def test_programs_on_this_host_find_the_web_process(host: str, url: str) -> None:
    assert read(CLAW_HOST=host, CLAW_PORT=80).local_url == url


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CLAW_PORT", "abc"),
        ("CLAW_PORT", "99999999"),
        ("CLAW_ENGINE_PORT", "0"),
        ("CLAW_IDLE_CLOSE_S", "-1"),
        ("CLAW_DEBUG", "perhaps"),
        ("CLAW_BASE_URL", "claw.example"),
        ("CLAW_BASE_URL", "http://claw.example:port"),
        ("ENGINE_URLS", "http://127.0.0.1:1, nonsense"),
        ("DATABASE_URL", "mysql://u:hidden@h/d"),
        ("DATABASE_URL", "postgresql://u:hidden@h:port/d"),
    ],
)
def test_a_bad_setting_is_named_and_not_repeated(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(BadSettings, match=f"^{name}: ") as caught:
        read_env.__wrapped__()
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "name", "nearest"),
    [
        ("CLAW_PROT=9000", "CLAW_PROT", "CLAW_PORT"),
        ("export CLAW_DATADIR=var", "CLAW_DATADIR", "CLAW_DATA_DIR"),
        ("CLAW_ENGINE_PROT=", "CLAW_ENGINE_PROT", "CLAW_ENGINE_PORT"),
    ],
)
def test_a_name_that_nothing_reads_is_refused_with_the_nearest_that_something_reads(
    line: str, name: str, nearest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text(f"CLAW_HOST=127.0.0.1\n{line}\n")
    monkeypatch.setattr("clawplatform.env.ROOT", tmp_path)
    with pytest.raises(BadSettings, match=f"^{name}: .*{nearest}$"):
        read_env.__wrapped__()


def test_every_name_of_the_example_file_and_other_programs_names_are_taken(tmp_path: Path) -> None:
    check_names(ROOT / ".env.example")
    (tmp_path / ".env").write_text("AWS_REGION=eu\n")
    check_names(tmp_path / ".env")
    check_names(tmp_path / "missing")


def test_a_data_directory_that_is_none_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = read(CLAW_DATA_DIR=str(tmp_path / "file"))
    with pytest.raises(BadSettings, match="CLAW_DATA_DIR"):
        make_folder(env, "static")
    with pytest.raises(BadSettings, match="CLAW_DATA_DIR"):
        read_secret_key(env)


def test_the_commands_say_it_in_one_line() -> None:
    environment = {**os.environ, "CLAW_PORT": "abc"}
    command = [sys.executable, str(ROOT / "manage.py"), "doctor"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("Error: CLAW_PORT: ")
    assert len(ended.stderr.splitlines()) == 1
