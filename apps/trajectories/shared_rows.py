"""Rows that many exchanges have in common, each read or written once for a batch of them.

Good for one transaction: what others change meanwhile is not seen, and what is rolled back would still be here.
"""

from apps.accounts.models import Agent, ApiKey
from apps.registry.models import Version
from apps.trajectories.models import Exchange
from apps.trajectories.trie import store_tools


class SharedRows:
    """Agents, keys, versions and tools of the exchanges in one transaction."""

    def __init__(self) -> None:
        self._agents: dict[tuple[str, str], Agent | None] = {}
        self._keys: dict[tuple[str, str], ApiKey | None] = {}
        self._versions: dict[str, str | None] = {}
        self._tools: set[tuple[str, str]] = set()

    def find_agent(self, exchange: Exchange) -> Agent | None:
        """Return the exchange's agent if it still exists, in its project."""
        name = (exchange.agent_id, exchange.project_id)
        if name not in self._agents:
            self._agents[name] = Agent.objects.filter(pk=exchange.agent_id, project_id=exchange.project_id).first()
        return self._agents[name]

    def find_key(self, exchange: Exchange, agent: Agent) -> ApiKey | None:
        """Return the exchange's key if it still exists and is the agent's."""
        name = (exchange.key_id, agent.id)
        if name not in self._keys:
            self._keys[name] = ApiKey.objects.filter(pk=exchange.key_id, agent=agent).first()
        return self._keys[name]

    def find_version_id(self, version_id: str) -> str | None:
        """Return the version's id if there is such a version."""
        if version_id not in self._versions:
            known = Version.objects.filter(pk=version_id).values_list("id", flat=True) if version_id else None
            self._versions[version_id] = known.first() if known is not None else None
        return self._versions[version_id]

    def keep_tools(self, *, project_id: str, digest: str, tools_json: str) -> None:
        """Store a list of tool definitions unless that was done just before."""
        if (project_id, digest) not in self._tools:
            store_tools(project_id=project_id, digest=digest, tools_json=tools_json)
            self._tools.add((project_id, digest))
