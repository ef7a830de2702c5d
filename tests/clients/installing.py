"""Installs clients at pinned versions into `var/clients`, each in a folder of its own, once.

A client that cannot be installed skips its test with the reason: this machine may have no way to its registry.
"""

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clients.gateway import ROOT

FOLDER = ROOT / "var" / "clients"
NODE = "node@24.21.0"  # npm's own package of it; OpenClaw does not run on older ones
TIMEOUT_S = 900
_MARK = ".installed"


def install_npm(name: str, package: str) -> Path:
    """Return the folder of the programs of an npm package."""
    if shutil.which("npm") is None:
        pytest.skip(f"{name}: there is no npm on this machine")
    _install(name, [package], [_npm_command(FOLDER / name, package)])
    return FOLDER / name / "node_modules" / ".bin"


def install_node() -> Path:
    """Return the folder of a `node` that is new enough for every client."""
    install_npm("node", NODE)
    return FOLDER / "node" / "node_modules" / "node" / "bin"


def install_python(name: str, *packages: str) -> Path:
    """Return the Python of a virtual environment that has these packages."""
    python = FOLDER / name / "bin" / "python"
    make = [sys.executable, "-m", "venv", str(FOLDER / name)]
    fill = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    _install(name, packages, [make, fill])
    return python


def _npm_command(folder: Path, package: str) -> list[str]:
    return ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error", package]


def _install(name: str, pins: Sequence[str], commands: Sequence[Sequence[str]]) -> None:
    """Run the commands unless these very pins are there."""
    folder = FOLDER / name
    mark, wanted = folder / _MARK, "\n".join(pins)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with _lock(FOLDER / f"{name}.lock"):
        if mark.is_file() and mark.read_text() == wanted:
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for command in commands:
            _run(name, command)
        mark.write_text(wanted)


def _run(name: str, command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{name} could not be installed: {error.stderr.strip()[-300:]}")
    except subprocess.TimeoutExpired:
        pytest.skip(f"{name} could not be installed within {TIMEOUT_S} s")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed
        yield
