"""Brings the platform up on one host, in order, and watches over it until it is told to stop.

    services → (migrate, seed) → programs → healthy → watch → stop

What has to happen between services and programs is the caller's: this module knows no Django. Every line for the person
at the terminal goes through `say`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from worker.host import health, ports, postgres
from worker.host.errors import HostError
from worker.host.leftovers import stop_leftovers
from worker.host.programs import SERVICES, Program, postgres_program, read_procfile, valkey_program
from worker.host.sockets import make_socket_folder, postgres_socket_dir, valkey_socket
from worker.host.supervisor import ProgramState, Supervisor

SERVICE_START_S = 60
PROGRAM_START_S = 90
ENGINE_START_S = 1800  # a busy host takes its time; an engine that dies is told at once
READY_S = 30
REVIVE_AFTER_S = 30
WATCH_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run on this host and where. An empty `database` or `model` means: none of our own."""

    root: Path
    data_dir: Path
    host: str
    port: int
    web_url: str  # for our own checks, from this host
    database: str  # name in the embedded Postgres
    has_valkey: bool
    engine_port: int
    model: str  # name under which the local engine serves
    environment: dict[str, str]

    @property
    def has_postgres(self) -> bool:
        return bool(self.database)

    @property
    def has_engine(self) -> bool:
        return bool(self.model)

    @property
    def engine_url(self) -> str:
        return f"http://127.0.0.1:{self.engine_port}"


class Platform:
    """The platform on this host, from nothing to healthy and back."""

    def __init__(self, plan: Plan, *, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.say = say
        self.supervisor = Supervisor(plan.data_dir)
        self._programs: list[Program] = []
        self._last: dict[str, ProgramState] = {}
        self._fell_at: dict[str, float] = {}
        self._tailed_at: dict[str, float] = {}

    @property
    def has_started(self) -> bool:
        """Whether anything of ours has been started, and so has to be stopped."""
        return bool(self._programs)

    def start_services(self) -> None:
        """Clear what an earlier start left, check the ports, start Postgres and Valkey, wait until they answer."""
        plan = self.plan
        if names := stop_leftovers(plan.data_dir):
            self.say(f"ended what an earlier start left behind: {', '.join(names)}")
        ports.check_free(plan.host, plan.port, wanted_for="web process", setting="CLAW_PORT")
        if plan.has_engine:
            ports.check_free("127.0.0.1", plan.engine_port, wanted_for="engine", setting="CLAW_ENGINE_PORT")
        make_socket_folder(plan.data_dir)
        self._programs = self._choose_programs()
        self.supervisor.start(self._programs, root=plan.root, environment=plan.environment)
        if plan.has_postgres:
            self._start_postgres()
        if plan.has_valkey:
            self._start_valkey()

    def start_programs(self) -> None:
        """Start everything else; the engine, which takes longest, can be started before by `start_engine`."""
        for name in self._names():
            self.supervisor.start_program(name)

    def start_engine(self) -> None:
        """Start the local engine and do not wait: it loads while the database is migrated."""
        if self.plan.has_engine:
            self.supervisor.start_program("engine")
            self.say("engine: loading the model (one to several minutes on a CPU, the first time longest)")

    def wait_for_programs(self) -> None:
        """Wait until every program is healthy. Raises HostError with the end of the log of one that is not."""
        for name in self._names():
            if name not in {"web", "engine"}:
                self._wait(name, partial(self._is_running, name), timeout_s=PROGRAM_START_S)
        self._wait("web", partial(health.check_http, f"{self.plan.web_url}/healthz"), timeout_s=PROGRAM_START_S)
        if self.plan.has_engine:
            credentials = self.plan.data_dir / "credentials.json"
            self.say(f"web: the console is open at {self.plan.web_url}, its login is in {credentials}")
            self._wait_for_engine()

    def wait_for_service(self) -> str | None:
        """Wait until the gateway can pass a call on to an engine; return in words what is missing when it cannot."""
        check = partial(health.check_http, f"{self.plan.web_url}/readyz")
        try:
            health.wait_until_healthy("gateway", check, timeout_s=READY_S)
        except HostError as error:
            return str(error)
        return None

    def _wait_for_engine(self) -> None:
        self._wait("engine", partial(health.check_http, f"{self.plan.engine_url}/health"), timeout_s=ENGINE_START_S)
        if problem := health.warm_up_engine(self.plan.engine_url, model=self.plan.model):
            raise HostError(f"the engine does not answer: {problem}\n{self.supervisor.tail('engine')}")
        self.say("engine: warmed up")

    def watch(self) -> None:
        """Report what dies, for ever. supervisord restarts it; what it gives up on is tried again after a pause."""
        self._last = self.supervisor.states()
        while True:
            time.sleep(WATCH_EVERY_S)
            if not self.supervisor.is_alive():
                raise HostError(f"supervisord has died:\n{self.supervisor.tail('supervisord')}")
            states = self.supervisor.states()
            for name, state in states.items():
                self._report(self._last[name], state)
            self._last = states

    def stop(self) -> None:
        """Stop everything, the services last."""
        self.supervisor.stop(tell=lambda name: self.say(f"{name}: stopped"))
        if names := stop_leftovers(self.plan.data_dir):
            self.say(f"ended what had not stopped by itself: {', '.join(names)}")

    def _choose_programs(self) -> list[Program]:
        plan = self.plan
        programs = read_procfile(plan.root / "Procfile", variables=plan.environment)
        if not plan.has_engine:
            programs = [program for program in programs if program.name != "engine"]
        if plan.has_postgres:
            programs.append(postgres_program(plan.data_dir, say=self.say))
        if plan.has_valkey:
            programs.append(valkey_program(plan.data_dir))
        return programs

    def _names(self) -> list[str]:
        return [program.name for program in self._programs if program.name not in SERVICES]

    def _start_postgres(self) -> None:
        folder = postgres_socket_dir(self.plan.data_dir)
        self.supervisor.start_program("postgres")
        check = partial(health.check_postgres_socket, folder, user=postgres.SUPERUSER)
        self._wait("postgres", check, timeout_s=SERVICE_START_S)
        postgres.ensure_database(self.plan.database, socket_dir=folder)

    def _start_valkey(self) -> None:
        url = f"unix://{valkey_socket(self.plan.data_dir)}"
        self.supervisor.start_program("valkey")
        self._wait("valkey", partial(health.check_redis, url), timeout_s=SERVICE_START_S)

    def _wait(self, name: str, check: health.Check, *, timeout_s: float) -> None:
        try:
            took_s = health.wait_until_healthy(
                name, check, timeout_s=timeout_s, death=lambda: self._given_up(name), say=self.say
            )
        except HostError as error:
            if "end of its log" in str(error):
                raise
            raise HostError(f"{error}\n{self.supervisor.tail(name)}") from error
        self.say(f"{name}: ready ({took_s:.1f} s)")

    def _given_up(self, name: str) -> str | None:
        """A program that fails is tried again by supervisord; only its giving up ends the start."""
        if self.supervisor.states()[name].state in {"STARTING", "RUNNING", "BACKOFF"}:
            return None
        return self.supervisor.describe_death(name)

    def _is_running(self, name: str) -> str | None:
        state = self.supervisor.states()[name].state
        return None if state == "RUNNING" else state.lower()

    def _report(self, before: ProgramState, now: ProgramState) -> None:
        name = now.name
        if now.state == "FATAL":
            self._revive(name)
        elif before.is_up and not now.is_up:
            self.say(f"{name} has died ({now.words}) and is being restarted{self._tail_now_and_then(name)}")
        elif before.is_up and before.pid != now.pid:
            self.say(f"{name} had died and is up again as process {now.pid}{self._tail_now_and_then(name)}")
        elif now.state == "RUNNING" and not before.is_up:
            self.say(f"{name} is up again as process {now.pid}")

    def _tail_now_and_then(self, name: str) -> str:
        """Return the end of a log, unless it was shown a moment ago: what dies again and again says the same."""
        now = time.monotonic()
        if now - self._tailed_at.get(name, -REVIVE_AFTER_S) < REVIVE_AFTER_S:
            return ""
        self._tailed_at[name] = now
        return f". The end of its log:\n{self.supervisor.tail(name)}"

    def _revive(self, name: str) -> None:
        if name not in self._fell_at:
            self._fell_at[name] = time.monotonic()
            self.say(f"{name} keeps dying; it is tried again every {REVIVE_AFTER_S} s{self._tail_now_and_then(name)}")
        elif time.monotonic() - self._fell_at[name] > REVIVE_AFTER_S:
            del self._fell_at[name]
            self.supervisor.start_program(name)
