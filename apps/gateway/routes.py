"""Whose key this is, which weights a model's name means, and which engines have them: one snapshot in memory.

Loaded off the token path; a Redis notice or a timer renews it, and while Postgres is away the last one goes on serving.
Knows no HTTP.
"""

import asyncio
import contextlib
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
from apps.core.notices import CHANNEL
from apps.registry.models import Alias, Deployment, DeploymentState, Engine, EngineState, Policy, Version, VersionState

log = structlog.get_logger(__name__)

REFRESH_EVERY_S = 5.0
RECONNECT_EVERY_S = 1.0
MISS_TIMEOUT_S = 3.0
MISS_AGE_S = 0.5  # unknown keys and models have snapshots loaded no more often than this
DEFAULT_MODEL = "default"
LIVE = "live"


@dataclass(frozen=True, slots=True)
class KeyRoute:
    """Who speaks with this key."""

    id: str
    agent_id: str
    project_id: str
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class VersionRoute:
    """One version: what an engine must be asked for, and how operators call it."""

    id: str
    engine_name: str
    label: str  # "smollm2@v3"
    base_model: str
    is_base: bool
    created: int


@dataclass(frozen=True, slots=True)
class EngineRoute:
    id: str
    base_url: str
    base_model: str
    is_up: bool


@dataclass(frozen=True, slots=True)
class PolicyRoutes:
    """The names of one policy: aliases and version numbers."""

    slug: str
    aliases: dict[str, VersionRoute]
    numbers: dict[str, VersionRoute]  # "v3"

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
    """Everything at one moment. `deployments`: version id → engines that have loaded it."""

    keys: dict[str, KeyRoute] = field(default_factory=dict)
    policies: dict[str, PolicyRoutes] = field(default_factory=dict)  # by project id
    engines: tuple[EngineRoute, ...] = ()
    deployments: dict[str, frozenset[str]] = field(default_factory=dict)
    loaded_at: float = float("-inf")  # time.monotonic()

    def find_key(self, secret: str) -> KeyRoute | None:
        route = self.keys.get(hash_key(secret))
        if route is not None and route.expires_at is not None and route.expires_at <= timezone.now():
            return None
        return route

    def find_version(self, project_id: str, model: str) -> VersionRoute | None:
        policy = self.policies.get(project_id)
        return policy.find(model) if policy else None

    def find_engines(self, version: VersionRoute) -> list[EngineRoute]:
        """Return the engines that have these weights, those that are up first."""
        if version.is_base:
            found = [engine for engine in self.engines if engine.base_model in {"", version.base_model}]
        else:
            loaded = self.deployments.get(version.id, frozenset())
            found = [engine for engine in self.engines if engine.id in loaded]
        return sorted(found, key=lambda engine: not engine.is_up)


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
        """Return the key's owner, looking once more when the snapshot may be older than the key."""
        return self.snapshot.find_key(secret) or ((await self._look_again()).find_key(secret))

    async def find_version(self, project_id: str, model: str) -> VersionRoute | None:
        """Return what a model's name means in a project, looking once more like `find_key`."""
        found = self.snapshot.find_version(project_id, model)
        return found or (await self._look_again()).find_version(project_id, model)

    async def _look_again(self) -> Snapshot:
        """Return a snapshot that is no older than the question: a key or version made just before it is found."""
        asked_at = time.monotonic()
        await asyncio.sleep(max(self.snapshot.loaded_at, self._looked_at) + MISS_AGE_S - asked_at)
        if self.snapshot.loaded_at < asked_at:
            self._looked_at = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MISS_TIMEOUT_S):
                    await self.refresh(asked_at=asked_at)
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
            with contextlib.suppress(OSError, redis.RedisError):
                async with redis.Redis.from_url(settings.REDIS_URL) as client, client.pubsub() as channel:
                    await channel.subscribe(CHANNEL)
                    self.is_listening = True
                    async for _ in channel.listen():  # the first is the subscription's own: what was missed is read
                        await self.refresh()
            self.is_listening = False
            await asyncio.sleep(RECONNECT_EVERY_S)


def load_snapshot() -> Snapshot:
    """Read the snapshot through the ORM, in a thread whose connection does not outlive the call."""
    at = time.monotonic()
    try:
        return Snapshot(
            keys=_load_keys(),
            policies=_load_policies(),
            engines=_load_engines(),
            deployments=_load_deployments(),
            loaded_at=at,
        )
    finally:
        connections.close_all()


def _load_keys() -> dict[str, KeyRoute]:
    rows = ApiKey.objects.usable().values_list("sha256", "id", "agent_id", "agent__project_id", "expires_at")
    return {sha256: KeyRoute(id_, agent, project, expires_at) for sha256, id_, agent, project, expires_at in rows}


def _load_engines() -> tuple[EngineRoute, ...]:
    rows = Engine.objects.filter(is_enabled=True).values_list("id", "base_url", "base_model", "state")
    return tuple(EngineRoute(id_, url.rstrip("/"), base, state == EngineState.UP) for id_, url, base, state in rows)


def _load_deployments() -> dict[str, frozenset[str]]:
    engines_of: dict[str, set[str]] = {}
    for version_id, engine_id in Deployment.objects.filter(state=DeploymentState.LOADED).values_list(
        "version_id", "engine_id"
    ):
        engines_of.setdefault(version_id, set()).add(engine_id)
    return {version_id: frozenset(engines) for version_id, engines in engines_of.items()}


def _load_policies() -> dict[str, PolicyRoutes]:
    """Read aliases before versions and versions before policies: what one names, the next then has."""
    aliases = list(Alias.objects.values_list("policy_id", "name", "version_id"))
    rows = Version.objects.filter(state=VersionState.READY).select_related("policy")
    versions = {version.id: (version.policy_id, f"v{version.number}", _route(version)) for version in rows}
    policies = list(Policy.objects.all())
    routes = {policy.id: PolicyRoutes(policy.slug, {}, {}) for policy in policies}
    for policy_id, number, route in versions.values():
        routes[policy_id].numbers[number] = route
    for policy_id, name, version_id in aliases:
        if version_id in versions:
            routes[policy_id].aliases[name] = versions[version_id][2]
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
