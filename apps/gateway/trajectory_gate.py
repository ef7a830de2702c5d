"""Says whether a call may be filed under the trajectory that it names. Asks Postgres each time: states change."""

import asyncio
import time

import psycopg
import structlog

from apps.core.ids import is_id
from apps.gateway.database import Connection, connect
from apps.gateway.errors import ApiError
from apps.trajectories.exchange_log import TrajectoryStub, find_trajectory

log = structlog.get_logger(__name__)

ANSWER_S = 1.0
PAUSE_S = 1.0  # after a failure, before Postgres is asked again
OPEN = "open"


class TrajectoryGate:
    """One connection, one question at a time."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._ask_again_at = float("-inf")

    async def admit(self, trajectory_id: str, *, project_id: str) -> None:
        """Return if the trajectory is the project's own and open; raises ApiError (404, 409) if not.

        While Postgres is away the call is let in: agents are served all the same, and the recorder checks the project
        again before it files the call.
        """
        if not is_id(trajectory_id, "traj"):
            raise _unknown(trajectory_id)
        async with self._lock:
            if time.monotonic() < self._ask_again_at:
                return
            try:
                async with asyncio.timeout(ANSWER_S):
                    stub = await self._find(trajectory_id)
            except (psycopg.Error, OSError, TimeoutError) as error:
                await self._give_up(error)
                return
        if stub is None or stub.project_id != project_id:
            raise _unknown(trajectory_id)
        if stub.state != OPEN:
            raise ApiError(
                f"The trajectory {trajectory_id} is complete: open a new one.", status=409, code="trajectory_complete"
            )

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _find(self, trajectory_id: str) -> TrajectoryStub | None:
        if self._connection is None:
            self._connection = await connect()
        try:
            return await find_trajectory(self._connection, trajectory_id)
        except psycopg.OperationalError:  # Postgres was restarted since the last question
            await self.close()
            self._connection = await connect()
            return await find_trajectory(self._connection, trajectory_id)

    async def _give_up(self, error: Exception) -> None:
        log.warning("trajectory.unchecked", error=str(error).strip() or type(error).__name__)
        self._ask_again_at = time.monotonic() + PAUSE_S
        await self.close()


def _unknown(trajectory_id: str) -> ApiError:
    return ApiError(
        f"There is no trajectory `{trajectory_id[:60]}` in this key's project.",
        status=404,
        code="trajectory_not_found",
        param="trajectory_id",
    )
