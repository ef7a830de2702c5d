"""Runs in the database, a folder for them, and a fake trainer in the place of the ML environment's Python."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.db import connection

from apps.training.models import Run
from tests.apps.training.conftest import *  # noqa: F403 (the same pool and runs)
from worker.tasks.supervision import Limits

ROOT = Path(__file__).resolve().parents[3]
FAST = Limits(poll_s=0.02, beat_s=0.1, lease_s=0.05, describe_s=0.1, start_s=20, stop_s=5, kill_s=0.5, database_s=5)


def fast(**changes: float) -> Limits:
    """Return short limits, some of them changed."""
    return replace(FAST, **changes)


@pytest.fixture
def trainer_python(tmp_path: Path) -> Path:
    """A program that takes the ML Python's arguments and runs the fake trainer."""
    program = tmp_path / "ml-python"
    fake = Path(__file__).with_name("fake_trainer.py")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{fake}" "$4"\n')
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def claw_settings(settings: object, tmp_path: Path, trainer_python: Path) -> None:
    changes = {"data_dir": tmp_path, "ml_python": trainer_python}
    settings.CLAW = settings.CLAW.model_copy(update=changes)  # type: ignore[attr-defined]


@pytest.fixture
def misbehave(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that says what trainers started from now on do wrong."""
    return lambda mode: monkeypatch.setenv("FAKE_TRAINER", mode)


@pytest.fixture
def process_environment(tmp_path: Path, trainer_python: Path) -> dict[str, str]:
    """The environment of a worker process of its own: this test's database, folder and trainer."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    database = urlunsplit(parts._replace(path=f"/{connection.settings_dict['NAME']}"))
    return {
        **os.environ,
        "DATABASE_URL": database,
        "CLAW_DATA_DIR": str(tmp_path),
        "CLAW_ML_PYTHON": str(trainer_python),
        "DJANGO_SETTINGS_MODULE": "clawplatform.settings",
    }


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """What a test starts; killed at its end."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    """Wait until it is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.02)


def later(action: Callable[[], object], *, when: Callable[[], bool]) -> threading.Thread:
    """Do something in a thread once a condition holds."""

    def wait_and_do() -> None:
        try:
            wait_for(when)
            action()
        finally:
            connection.close()

    thread = threading.Thread(target=wait_and_do)
    thread.start()
    return thread


def reread(run: Run) -> Run:
    """Return the run as it is now."""
    return Run.objects.get(pk=run.pk)
