"""`manage.py up`: the whole platform on this host, in the foreground. Ctrl-C or SIGTERM stops all of it."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core.errors import ServiceError
from apps.registry.queries import find_context_length
from apps.registry.services import forget_engine_health
from clawplatform.databases import EMBEDDED_DATABASE
from clawplatform.env import ROOT, Env, find_slips, read_env
from clawplatform.seeding import Seeded, credentials_path, seed_platform
from worker.host import health, lock
from worker.host.banner import Welcome, render_banner
from worker.host.errors import HostError
from worker.host.startup import Plan, Platform


class Command(BaseCommand):
    help = "Start the platform on this host and stay: databases, web, recorder, workers, and a local engine."
    requires_system_checks: list[str] = []  # they ask the database, which is not running yet

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--no-engine", action="store_true", help="start no local engine")

    def handle(self, *_args: Any, **options: Any) -> None:
        self._started_at = time.monotonic()
        env = read_env()
        for name, nearest in find_slips():
            self._say(f"nothing reads {name}: do you mean {nearest}?")
        has_engine = not options["no_engine"] and not env.engine_urls
        try:
            with lock.hold(env.data_dir, url=f"{env.public_base_url}/"):
                _answer_signals(_interrupt)
                _check_parts(env, has_engine=has_engine)
                self._run(env, Platform(make_plan(env, has_engine=has_engine), say=self._say))
        except HostError as error:
            raise CommandError(str(error)) from error
        except ServiceError as error:
            raise CommandError(error.message) from error

    def _run(self, env: Env, platform: Platform) -> None:
        try:
            self._start(env, platform)
            platform.watch()
        except KeyboardInterrupt:
            self._say("stopping …")
        finally:
            _answer_signals(signal.SIG_IGN)
            platform.stop()
            if platform.has_started:
                self._say("everything has stopped")

    def _start(self, env: Env, platform: Platform) -> None:
        platform.start_services()
        platform.start_engine()
        call_command("migrate", interactive=False, verbosity=0)
        self._say("database: migrated")
        engine_urls = (platform.plan.engine_url,) if platform.plan.has_engine else env.engine_urls
        seeded = seed_platform(env, engine_urls=engine_urls)
        forget_engine_health()
        platform.start_programs()
        platform.wait_for_programs()
        if engine_urls and (problem := platform.wait_for_service()):
            self._say(f"model calls are not answered yet: {problem}")
        self.stdout.write(render_banner(_welcome(env, seeded, has_engine=bool(engine_urls))))
        self.stdout.flush()

    def _say(self, text: str) -> None:
        self.stdout.write(f"[{time.monotonic() - self._started_at:6.1f} s] {text}")
        self.stdout.flush()


def make_plan(env: Env, *, has_engine: bool) -> Plan:
    """Return what to run, from the environment's settings."""
    return Plan(
        root=ROOT,
        data_dir=env.data_dir,
        host=env.host,
        port=env.port,
        web_url=env.local_url,
        database="" if env.database_url else EMBEDDED_DATABASE,
        has_valkey=not env.redis_url,
        engine_port=env.engine_port,
        model=env.model_dir.name if has_engine else "",
        environment=_environment(env),
    )


def _environment(env: Env) -> dict[str, str]:
    """Every process gets the same settings, resolved, whatever folder it starts in; the Procfile's lines use them."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
        "DJANGO_SETTINGS_MODULE": "clawplatform.settings",
        "CLAW_DATA_DIR": str(env.data_dir),
        "CLAW_CACHE_DIR": str(env.cache_dir),
        "CLAW_HOST": env.host,
        "CLAW_PORT": str(env.port),
        "CLAW_ENGINE_PORT": str(env.engine_port),
        "CLAW_ENGINE_DTYPE": env.engine_dtype,
        "CLAW_MAX_LORA_RANK": str(env.max_lora_rank),
        "CLAW_MEDIA_DOMAINS": ",".join(env.media_domains),
        "CLAW_ML_PYTHON": str(env.ml_python),
        "CLAW_MODEL": str(env.model_dir),
        "CLAW_SERVED_NAME": env.model_dir.name,
    }


def _check_parts(env: Env, *, has_engine: bool) -> None:
    """Refuse at once what would fail later with less to say."""
    if env.database_url and (problem := health.check_postgres(env.database_url)):
        raise HostError(f"DATABASE_URL cannot be used: {problem}")
    if env.redis_url and (problem := health.check_redis(env.redis_url)):
        raise HostError(f"REDIS_URL cannot be used: {problem}")
    if not has_engine:
        return
    if not env.ml_python.exists():
        raise HostError(f"there is no {env.ml_python}: run `make setup`, set ENGINE_URLS, or pass --no-engine")
    if not (env.model_dir / "config.json").is_file():
        raise HostError(f"there is no model in {env.model_dir}: run `make setup`, or set CLAW_MODEL or ENGINE_URLS")


def _welcome(env: Env, seeded: Seeded, *, has_engine: bool) -> Welcome:
    return Welcome(
        base_url=env.public_base_url,
        email=seeded.email,
        password=seeded.password,
        project=seeded.project,
        api_key=seeded.agent_key,
        credentials_file=str(credentials_path(env)),
        has_engine=has_engine,
        can_be_interrupted=sys.stdin is not None and sys.stdin.isatty(),
        context_tokens=find_context_length(),
    )


def _answer_signals(handler: "signal._HANDLER") -> None:
    for number in (signal.SIGTERM, signal.SIGINT):  # SIGINT too: background jobs start deaf to it
        signal.signal(number, handler)


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    _answer_signals(signal.SIG_IGN)  # a second one, right after the first, would leave half of it running
    raise KeyboardInterrupt
