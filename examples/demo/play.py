"""Plays tasks with the weather agent through the gateway and posts the verifier's rewards, as any task runner would."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from openai import AsyncOpenAI, OpenAIError

from examples.demo.client import PlatformClient
from examples.weather_agent.agent import Episode, play
from examples.weather_agent.tasks import Channel, Task
from examples.weather_agent.verifier import score

TEMPERATURE = 0.8
PERFECT = 0.999


@dataclass(frozen=True, kw_only=True)
class Player:
    """What playing needs: the REST client, the agent's key, and how many episodes run at once."""

    platform: PlatformClient
    agent_key: str
    n_at_once: int


@dataclass
class Round:
    """What came of playing some tasks."""

    started: float = field(default_factory=time.monotonic)
    trajectory_ids: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    response_ids: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def reward(self) -> float:
        """Mean reward; nan-free: an empty round is 0."""
        return fmean(self.rewards) if self.rewards else 0.0

    @property
    def share_perfect(self) -> float:
        """Share of episodes without a fault."""
        return fmean(reward >= PERFECT for reward in self.rewards) if self.rewards else 0.0


async def play_round(player: Player, tasks: Sequence[Task], *, channel: Channel) -> Round:
    """Play `tasks`, each in a trajectory of its own; label and complete each."""
    done = Round()
    gate = asyncio.Semaphore(player.n_at_once)

    async def play_one(task: Task) -> None:
        async with gate:
            try:
                await _play_task(player, task, channel=channel, done=done)
            except OpenAIError as error:
                done.failures.append(f"{task.question}: {error}")

    await asyncio.gather(*(play_one(task) for task in tasks))
    return done


async def _play_task(player: Player, task: Task, *, channel: Channel, done: Round) -> None:
    opened = await player.platform.open_trajectory(channel=channel, group="", metadata={"question": task.question})
    async with AsyncOpenAI(base_url=opened["base_url"], api_key=player.agent_key, max_retries=0) as client:
        episode = await play(client, task, model="default", temperature=TEMPERATURE)
    reward = score(episode)
    await player.platform.add_label(opened["id"], value=reward, text=_explain(episode))
    await player.platform.complete_trajectory(opened["id"])
    done.trajectory_ids.append(opened["id"])
    done.rewards.append(reward)
    done.response_ids.extend(episode.response_ids)


def _explain(episode: Episode) -> str:
    return f"wanted {episode.task.tool}({episode.task.city!r}) → {episode.task.result!r} in a sentence"
