"""The five calls that a white-box agent makes. Standard library only; any HTTP client would do."""

import json
import time
import urllib.error
import urllib.request
from typing import Any

Json = dict[str, Any]
N_TRIES = 5


class PlatformError(Exception):
    """The platform refused; the message is its own."""


class Platform:
    """One project, by a key of its agent."""

    def __init__(self, base_url: str, key: str) -> None:
        self.base_url = base_url.rstrip("/")
        self._key = key

    def open_trajectory(self, *, group: str, metadata: Json) -> str:
        """Open a trajectory of a group and return its id."""
        body = {"group": group, "metadata": metadata}
        return str(self._post("/api/v1/trajectories", body)["id"])

    def generate(self, prompt_ids: list[int], sampling: Json) -> Json:
        """Return what the model samples behind these tokens: `token_ids`, `log_probs`, `stop_reason`, `versions`."""
        return self._post("/v1/generate", {"prompt_ids": prompt_ids, "sampling_params": sampling})

    def submit_steps(self, trajectory_id: str, steps: list[Json]) -> Json:
        """Add steps to the trajectory; those with a `client_step_id` may be sent again."""
        return self._post(f"/api/v1/trajectories/{trajectory_id}/steps", {"steps": steps})

    def add_reward(self, trajectory_id: str, value: float) -> None:
        """Say what the whole trajectory was worth."""
        body = {"value": value, "source": "environment", "idempotency_key": f"sums/{trajectory_id}"}
        self._post(f"/api/v1/trajectories/{trajectory_id}/labels", body)

    def complete(self, trajectory_id: str) -> None:
        """Say that nothing more comes."""
        self._post(f"/api/v1/trajectories/{trajectory_id}/complete", {})

    def _post(self, path: str, body: Json, *, n_tries: int = N_TRIES) -> Json:
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.base_url + path, json.dumps(body).encode(), headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:  # noqa: S310
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            if error.code not in {429, 503} or n_tries == 1:
                raise PlatformError(f"{path}: {error.code} {error.read()[:500].decode()}") from error
            time.sleep(float(error.headers.get("Retry-After") or 1))
        return self._post(path, body, n_tries=n_tries - 1)
