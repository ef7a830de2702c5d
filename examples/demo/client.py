"""The REST calls that the demo makes. Any team's script would make the same ones with the same key."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import aiohttp

JsonObject = dict[str, Any]


class ApiError(Exception):
    """The platform refused; the message is its own."""


class PlatformClient:
    """A thin client of `/api/v1` for one project, by a key of scope `manage`."""

    def __init__(self, base_url: str, key: str) -> None:
        self.base_url = base_url
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"}, timeout=aiohttp.ClientTimeout(total=60)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def _call(self, method: str, path: str, *, body: JsonObject | None = None) -> JsonObject:
        async with self._session.request(method, f"{self.base_url}/api/v1/{path}", json=body) as response:
            answer: JsonObject = await response.json(content_type=None)
            if response.status >= 400:
                raise ApiError(f"{method} {path}: {response.status} {answer.get('detail', answer)}")
            return answer

    async def open_trajectory(self, *, channel: str, group: str, metadata: JsonObject) -> JsonObject:
        """Open a trajectory; its `base_url` is what the agent is given."""
        body = {"channel": channel, "group": group, "metadata": metadata}
        return await self._call("POST", "trajectories", body=body)

    async def complete_trajectory(self, trajectory_id: str) -> None:
        """Say that the episode is over."""
        await self._call("POST", f"trajectories/{trajectory_id}/complete", body={})

    async def add_label(self, trajectory_id: str, *, value: float, text: str) -> None:
        """Post the verifier's reward."""
        body = {"value": value, "text": text, "source": "environment"}
        await self._call("POST", f"trajectories/{trajectory_id}/labels", body=body)

    async def iterate_trajectories(self) -> AsyncIterator[JsonObject]:
        """Yield every trajectory of the project, newest first."""
        before = ""
        while True:
            page = await self._call("GET", f"trajectories?limit=200{before}")
            for trajectory in page["items"]:
                yield trajectory
            if page["next_before"] is None:
                return
            before = f"&before={page['next_before']}"

    async def iterate_steps(self, trajectory_id: str) -> AsyncIterator[JsonObject]:
        """Yield the steps of one trajectory as the pool has them, in order."""
        after = ""
        while True:
            page = await self._call("GET", f"trajectories/{trajectory_id}/steps?limit=200{after}")
            for step in page["items"]:
                yield step
            if page["next_after"] is None:
                return
            after = f"&after={page['next_after']}"

    async def get_metrics(self, run_id: str) -> list[JsonObject]:
        """Return the run's points, oldest first."""
        points: list[JsonObject] = (await self._call("GET", f"runs/{run_id}/metrics"))["items"]
        return points

    async def launch_run(self, *, name: str, recipe: JsonObject, selection: JsonObject) -> JsonObject:
        """Launch a training run, as the form in the browser does."""
        return await self._call("POST", "runs", body={"name": name, "recipe": recipe, "selection": selection})

    async def get_run(self, run_id: str) -> JsonObject:
        """Return the run's state."""
        return await self._call("GET", f"runs/{run_id}")

    async def cancel_run(self, run_id: str) -> None:
        """Stop the run; what it has published stays."""
        await self._call("POST", f"runs/{run_id}/cancel", body={})

    async def list_versions(self) -> list[JsonObject]:
        """Return the policy's versions, newest first."""
        answer = await self._call("GET", "versions?limit=200")
        items: list[JsonObject] = answer["items"]
        return items
