"""Whose key this is, which weights a model's name means, and which engines have them: one snapshot in memory.

Loaded off the token path; a Redis notice or a timer renews it, and while Postgres is away the last one goes on serving.
Knows no HTTP.
"""

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass, field
from datetime import datetime

import redis.asyncio as redis
import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connections
from django.utils import timezone

from apps.accounts.models import ApiKey, hash_key
from apps.core.errors import ServiceError
from apps.core.notices import CHANNEL
from apps.gateway.capture_policy import CapturePolicy
from apps.gateway.placement import choose_share
from apps.gateway.terms import ScopeLimits, Terms, load_terms
from apps.registry.models import (
    Alias,
    Deployment,
    DeploymentState,
    Engine,
    EngineKind,
    EngineState,
    Policy,
    Teacher,
    Version,
    VersionState,
)
from apps.registry.providers import open_credential

log = structlog.get_logger(__name__)

REFRESH_EVERY_S = 5.0
STALE_AFTER_S = 3 * REFRESH_EVERY_S
RECONNECT_EVERY_S = 1.0
MISS_TIMEOUT_S = 3.0
MISS_AGE_S = 0.5  # unknown keys and models have snapshots loaded no more often than this
DEFAULT_MODEL = "default"
LIVE = "live"


@dataclass(frozen=True, slots=True)
class KeyRoute:
    """Who speaks with this key, and under which terms. `capture`: None where everything is kept."""

    id: str
    agent_id: str
    project_id: str
    expires_at: datetime | None
    limits: tuple[ScopeLimits, ...] = ()
    capture: CapturePolicy | None = None
    is_one_session: bool = False

    @property
    def session(self) -> str:
        """The name of the one session that all calls with this key belong to, "" for a key of many sessions."""
        return self.id if self.is_one_session else ""


@dataclass(frozen=True, slots=True)
class VersionRoute:
    """One version, or a teacher: what an engine must be asked for, and how operators call it."""

    id: str
    engine_name: str
    label: str  # "smollm2@v3"
    base_model: str
    is_base: bool
    created: int
    is_text_only: bool = False  # a provider's model: it tells no token ids, and refuses vLLM's own fields

    @property
    def template(self) -> str:
        """What names the chat template that renders its prompts: each base model, and each teacher, has one."""
        return self.base_model or self.id


@dataclass(frozen=True, slots=True)
class EngineRoute:
    """One engine. `fault`: why nothing can be sent there until a person has mended it."""

    id: str
    base_url: str
    base_model: str
    is_up: bool
    kind: EngineKind = EngineKind.VLLM
    credential: str = field(default="", repr=False)
    max_in_flight: int | None = None
    fault: str = ""
    weights: str = ""  # id of the version whose whole model is in its base's place, "" for the base
    is_moving: bool = False  # its weights are being changed: calls wait

    @property
    def is_provider(self) -> bool:
        return self.kind != EngineKind.VLLM

    def url(self, path: str) -> str:
        """Return the address of a path such as `/v1/models`. A provider's own base address holds its version."""
        return self.base_url + (path.removeprefix("/v1") if self.is_provider else path)


@dataclass(frozen=True, slots=True)
class PolicyRoutes:
    """The names of one policy: aliases and version numbers. `shares`: what other aliases take of live's calls."""

    slug: str
    aliases: dict[str, VersionRoute]
    numbers: dict[str, VersionRoute]  # "v3"
    shares: dict[str, int] = field(default_factory=dict)  # per cent

    def find(self, model: str) -> VersionRoute | None:
        """Return what `slug`, `default`, `slug@candidate` or `slug@v3` means."""
        name, _, suffix = model.partition("@")
        if name not in {self.slug, DEFAULT_MODEL}:
            return None
        suffix = suffix or LIVE
        return self.aliases.get(suffix) or self.numbers.get(suffix)

    def names(self) -> dict[str, VersionRoute]:
        """The names that an agent would choose from, and what they mean now."""
        names = {self.slug: self.aliases[LIVE], DEFAULT_MODEL: self.aliases[LIVE]} if LIVE in self.aliases else {}
        return names | {f"{self.slug}@{alias}": version for alias, version in self.aliases.items() if alias != LIVE}


@dataclass(frozen=True)
class Snapshot:
    """Everything at one moment. `deployments`: id of a version or teacher → engines that have it."""

    keys: dict[str, KeyRoute] = field(default_factory=dict)
    policies: dict[str, PolicyRoutes] = field(default_factory=dict)  # by project id
    teachers: dict[str, dict[str, VersionRoute]] = field(default_factory=dict)  # by project id and name
    engines: tuple[EngineRoute, ...] = ()
    deployments: dict[str, frozenset[str]] = field(default_factory=dict)
    loaded_at: float = float("-inf")  # time.monotonic()

    def find_key(self, secret: str) -> KeyRoute | None:
        route = self.keys.get(hash_key(secret))
        if route is not None and route.expires_at is not None and route.expires_at <= timezone.now():
            return None
        return route

    def find_version(self, project_id: str, model: str, *, session: str = "") -> VersionRoute | None:
        """Return what a model's name means in a project, for this session where the policy's calls are split.

        Only the bare name is split: who says `@live` or `@v3` means just that.
        """
        policy = self.policies.get(project_id)
        found = policy.find(model) if policy else None
        if policy is None or found is None:
            return self.teachers.get(project_id, {}).get(model)
        if not policy.shares or "@" in model:
            return found
        name = choose_share(tuple(policy.shares.items()), session=session or secrets.token_hex(8))
        sharer = policy.aliases.get(name or LIVE)
        # A candidate that no engine can answer for must not fail live's callers.
        return sharer if sharer is not None and any(e.is_up for e in self.find_engines(sharer)) else found

    def names(self, project_id: str) -> dict[str, VersionRoute]:
        """The names that an agent of this project would choose from, and what they mean now."""
        policy = self.policies.get(project_id)
        return self.teachers.get(project_id, {}) | (policy.names() if policy else {})

    def find_engines(self, version: VersionRoute) -> list[EngineRoute]:
        """Return the engines that have these weights, those that are up first."""
        if version.is_base:
            own = (engine for engine in self.engines if not engine.is_provider)
            found = [engine for engine in own if engine.base_model in {"", version.base_model} and not engine.weights]
        else:
            loaded = self.deployments.get(version.id, frozenset())
            found = [engine for engine in self.engines if engine.id in loaded]
        found = [engine for engine in found if not engine.is_moving]
        return sorted(found, key=lambda engine: not engine.is_up)


class StaleRoutesError(Exception):
    """What was asked for is not in the snapshot, and Postgres does not say whether it is there since."""


class RouteBook:
    """Keeps the snapshot fresh."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.is_listening = False
        self._lock = asyncio.Lock()
        self._looked_at = float("-inf")
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_loaded(self) -> bool:
        """Whether there ever was a snapshot."""
        return self.snapshot.loaded_at > float("-inf")

    @property
    def is_fresh(self) -> bool:
        """Whether Postgres has answered of late, as far as this process asks when no calls come."""
        return time.monotonic() < self.snapshot.loaded_at + STALE_AFTER_S

    async def start(self) -> None:
        await self.refresh()
        self._tasks = [asyncio.create_task(self._refresh_on_timer()), asyncio.create_task(self._listen())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def refresh(self, *, asked_at: float | None = None) -> None:
        """Load a snapshot of `asked_at` (now) or later; callers that wait while one is being loaded share the next."""
        asked_at = time.monotonic() if asked_at is None else asked_at
        async with self._lock:
            if self.snapshot.loaded_at >= asked_at:
                return
            try:
                self.snapshot = await asyncio.to_thread(load_snapshot)
            except DatabaseError as error:
                log.warning("routes.stale", error=str(error).strip())

    async def find_key(self, secret: str) -> KeyRoute | None:
        """Return the key's owner, looking once more when the snapshot may be older than the key.

        Raises StaleRoutesError when it cannot look: the key may be good.
        """
        return self.snapshot.find_key(secret) or ((await self._look_again()).find_key(secret))

    async def find_version(self, project_id: str, model: str, *, session: str = "") -> VersionRoute | None:
        """Return what a model's name means in a project, looking once more like `find_key`; raises StaleRoutesError."""
        found = self.snapshot.find_version(project_id, model, session=session)
        return found or (await self._look_again()).find_version(project_id, model, session=session)

    async def _look_again(self) -> Snapshot:
        """Return a snapshot that is no older than the question: a key or version made just before it is found.

        Raises StaleRoutesError.
        """
        asked_at = time.monotonic()
        await asyncio.sleep(max(self.snapshot.loaded_at, self._looked_at) + MISS_AGE_S - asked_at)
        if self.snapshot.loaded_at < asked_at:
            self._looked_at = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MISS_TIMEOUT_S):
                    await self.refresh(asked_at=asked_at)
        if self.snapshot.loaded_at < asked_at:
            raise StaleRoutesError
        return self.snapshot

    async def _refresh_on_timer(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_EVERY_S)
            try:
                await self.refresh()
            except Exception:  # the edge: the last snapshot goes on serving whatever it is
                log.exception("routes.crashed")

    async def _listen(self) -> None:
        while True:
            try:
                async with redis.Redis.from_url(settings.REDIS_URL) as client, client.pubsub() as channel:
                    await channel.subscribe(CHANNEL)
                    self.is_listening = True
                    async for _ in channel.listen():  # the first is the subscription's own: what was missed is read
                        await self.refresh()
            except (OSError, redis.RedisError):
                pass
            except Exception:  # the edge: whatever it is, the next notice is to be heard
                log.exception("routes.crashed")
            self.is_listening = False
            await asyncio.sleep(RECONNECT_EVERY_S)


def load_snapshot() -> Snapshot:
    """Read the snapshot through the ORM, in a thread whose connection does not outlive the call."""
    at = time.monotonic()
    try:
        return Snapshot(
            keys=_load_keys(),
            policies=_load_policies(),
            teachers=_load_teachers(),
            engines=_load_engines(),
            deployments=_load_deployments(),
            loaded_at=at,
        )
    finally:
        connections.close_all()


def _load_keys() -> dict[str, KeyRoute]:
    """Read terms after keys: a key's first call knows the limits that were set before it was made known."""
    keys = list(ApiKey.objects.usable().select_related("agent__project"))
    terms = load_terms()
    return {key.sha256: _key_route(key, terms) for key in keys}


def _key_route(key: ApiKey, terms: Terms) -> KeyRoute:
    project = key.agent.project
    return KeyRoute(
        id=key.id,
        agent_id=key.agent_id,
        project_id=project.id,
        expires_at=key.expires_at,
        limits=terms.limits_of(key.id, project.id, project.team_id),
        capture=terms.capture.get(key.agent_id),
        is_one_session=key.is_one_session,
    )


def _load_engines() -> tuple[EngineRoute, ...]:
    return tuple(_engine_route(engine) for engine in Engine.objects.filter(is_enabled=True))


def _engine_route(engine: Engine) -> EngineRoute:
    credential = fault = ""
    try:
        credential = open_credential(engine)
    except ServiceError as error:
        fault = error.message
    return EngineRoute(
        id=engine.id,
        base_url=engine.base_url.rstrip("/"),
        base_model=engine.base_model,
        is_up=engine.state == EngineState.UP,
        kind=EngineKind(engine.kind),
        credential=credential,
        max_in_flight=engine.max_in_flight,
        fault=fault,
        weights=engine.weights_id or "",
        is_moving=engine.moving_since is not None,
    )


def _load_deployments() -> dict[str, frozenset[str]]:
    engines_of: dict[str, set[str]] = {}
    loaded = Deployment.objects.filter(state=DeploymentState.LOADED)
    for version_id, engine_id in loaded.values_list("version_id", "engine_id"):
        engines_of.setdefault(version_id, set()).add(engine_id)
    for teacher_id, engine_id in Teacher.objects.values_list("id", "engine_id"):
        engines_of[teacher_id] = {engine_id}
    return {version_id: frozenset(engines) for version_id, engines in engines_of.items()}


def _load_teachers() -> dict[str, dict[str, VersionRoute]]:
    routes: dict[str, dict[str, VersionRoute]] = {}
    for teacher in Teacher.objects.all():
        routes.setdefault(teacher.project_id, {})[teacher.name] = VersionRoute(
            id=teacher.id,
            engine_name=teacher.model,
            label=teacher.name,
            base_model="",
            is_base=False,
            created=int(teacher.created_at.timestamp()),
            is_text_only=True,
        )
    return routes


def _load_policies() -> dict[str, PolicyRoutes]:
    """Read aliases before versions and versions before policies: what one names, the next then has."""
    aliases = list(Alias.objects.order_by("name").values_list("policy_id", "name", "version_id", "live_share"))
    rows = Version.objects.filter(state=VersionState.READY).select_related("policy")
    versions = {version.id: (version.policy_id, f"v{version.number}", _route(version)) for version in rows}
    policies = list(Policy.objects.all())
    routes = {policy.id: PolicyRoutes(policy.slug, {}, {}) for policy in policies}
    for policy_id, number, route in versions.values():
        routes[policy_id].numbers[number] = route
    for policy_id, name, version_id, live_share in aliases:
        if version_id in versions:
            routes[policy_id].aliases[name] = versions[version_id][2]
            if live_share:
                routes[policy_id].shares[name] = live_share
    return {policy.project_id: routes[policy.id] for policy in policies}


def _route(version: Version) -> VersionRoute:
    return VersionRoute(
        id=version.id,
        engine_name=version.engine_name,
        label=str(version),
        base_model=version.policy.base_model,
        is_base=version.is_base,
        created=int(version.created_at.timestamp()),
    )
