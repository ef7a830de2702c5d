"""Play tasks against a running platform and reward the answers: `python -m examples.weather_agent`, with $CLAW_KEY."""

import argparse
import asyncio
import json
import os
import sys
import urllib.request
from statistics import fmean

from openai import AsyncOpenAI, OpenAIError

from examples.weather_agent.agent import Episode, play
from examples.weather_agent.tasks import Task, generate_tasks
from examples.weather_agent.verifier import score


async def play_and_reward(client: AsyncOpenAI, task: Task, *, temperature: float) -> float:
    """Play a task; its reward is a label of the last answer."""
    episode = await play(client, task, model="default", temperature=temperature)
    reward = score(episode)
    await asyncio.to_thread(add_label, client, episode, reward)
    print(f"{reward:.2f}  {task.question}  {episode.messages[-1].get('content')!r}", flush=True)
    return reward


def add_label(client: AsyncOpenAI, episode: Episode, reward: float) -> None:
    """Say by the answer's id what the episode was worth, as any program of the world outside would."""
    url = f"{str(client.base_url).removesuffix('v1/')}api/v1/responses/{episode.response_ids[-1]}/labels"
    body = json.dumps({"value": reward, "source": "environment"}).encode()
    headers = {"Authorization": f"Bearer {client.api_key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60):  # noqa: S310
        return


async def play_all(options: argparse.Namespace) -> int:
    """Play one task after the other; returns the exit code."""
    async with AsyncOpenAI(base_url=f"{options.url}/v1", api_key=options.key) as client:
        rewards = [
            await play_and_reward(client, task, temperature=options.temperature)
            for task in generate_tasks(options.tasks, channel="train", seed=options.seed)
        ]
    print(f"{len(rewards)} tasks, mean reward {fmean(rewards):.2f}")
    return 0


def main() -> int:
    """Read the command line and play."""
    parser = argparse.ArgumentParser(prog="python -m examples.weather_agent", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the platform is")
    parser.add_argument("--key", default=os.environ.get("CLAW_KEY"), help="an agent's key; else $CLAW_KEY")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not options.key:
        parser.error("set CLAW_KEY or pass --key: README.md has the command")
    try:
        return asyncio.run(play_all(options))
    except (OpenAIError, OSError) as error:
        print(f"the platform at {options.url} did not answer as it should: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
