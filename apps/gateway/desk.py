"""The parts that all endpoints of one process share, started and stopped together."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TypeVar

import structlog
from django.conf import settings

from apps.accounts.api.authentication import read_secret
from apps.core.contracts.exchange import SPOOL_FOLDER, ExchangeRecord
from apps.gateway.capture_policy import CapturePolicy, redact_record
from apps.gateway.engines import Engines
from apps.gateway.errors import bad_key, unavailable
from apps.gateway.keep_alive import KeepAlive
from apps.gateway.known_talks import KnownTalks
from apps.gateway.limits import Limiter
from apps.gateway.passed_calls import PassedCallCounter
from apps.gateway.prompt_form import KnownForms
from apps.gateway.replay import replay_forever
from apps.gateway.routes import KeyRoute, RouteBook, StaleRoutesError, VersionRoute
from apps.gateway.spool import Spool
from apps.gateway.trajectory_gate import TrajectoryGate
from apps.gateway.writer import ExchangeWriter

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Desk:
    """Routes, engines and their templates' forms, known talks, limits, writer and spool, the gate to trajectories,
    keep-alive.

    Made inside the running event loop.
    """

    def __init__(self) -> None:
        self.routes = RouteBook()
        self.engines = Engines()
        self.limiter = Limiter()
        self.passed_calls = PassedCallCounter()
        self.spool = Spool(settings.CLAW.data_dir / SPOOL_FOLDER)
        self.writer = ExchangeWriter(self.spool)
        self.trajectories = TrajectoryGate()
        self.keep_alive = KeepAlive()
        self.prompt_forms = KnownForms()
        self.known_talks = KnownTalks()
        self._replay: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.routes.start()
        await self.writer.start()
        self.keep_alive.start()
        self.limiter.start()
        self.passed_calls.start()
        self._replay = asyncio.create_task(replay_forever(self.spool))
        log.info("gateway.started", keys=len(self.routes.snapshot.keys), engines=len(self.routes.snapshot.engines))

    async def stop(self) -> None:
        """Called when no call is in flight any more: write what is queued, let go of everything."""
        if self._replay is not None:
            self._replay.cancel()
            await asyncio.gather(self._replay, return_exceptions=True)
        await self.keep_alive.stop()
        await self.limiter.stop()
        await self.passed_calls.stop()
        await self.writer.stop()
        await self.routes.stop()
        await self.trajectories.close()
        self.engines.close()
        log.info("gateway.stopped")

    async def identify(self, headers: Mapping[str, str]) -> KeyRoute:
        """Return who speaks; raises ApiError (401, or 503 when nobody can say)."""
        secret = read_secret(headers.get("authorization", ""), headers.get("x-api-key", ""))
        key = await self._look_up(self.routes.find_key(secret)) if secret else None
        if key is None:
            raise bad_key(is_given=bool(secret))
        return key

    async def find_version(self, key: KeyRoute, model: str, *, session: str = "") -> VersionRoute | None:
        """Return the weights that the key means by `model`, None when it means none; raises ApiError (503)."""
        return await self._look_up(self.routes.find_version(key.project_id, model, session=session))

    async def _look_up(self, question: Awaitable[T]) -> T:
        """Return the answer. A key or a model that may be good is not refused for good: raises ApiError (503)."""
        try:
            return await question
        except StaleRoutesError as error:
            if not self.routes.is_loaded:
                raise unavailable(
                    "The platform is starting: its database does not answer yet.", code="starting"
                ) from error
            message = "Keys and models cannot be looked up: the database does not answer."
            raise unavailable(message, code="database_unavailable") from error

    async def keep(self, record: ExchangeRecord, policy: CapturePolicy | None, *, conversation: str) -> None:
        """Return when a call is durable, as far as its agent's policy has it kept. `conversation`: what all of its
        calls share.
        """
        if policy is not None:
            if policy.redactor is None:
                return self.passed_calls.count(record.agent_id)
            record = await redact_record(record, policy.redactor)
        return await self.writer.commit(record, conversation=conversation)
