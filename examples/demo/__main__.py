"""The demo: an agent plays generated tasks, a verifier rewards it, a run trains on that, versions go live under a
second agent that never stops calling, and the held-out tasks are played again.

Exits non-zero if the held-out reward did not rise, a request failed, or an answer is missing from the pool.
"""

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, field

from openai import AsyncOpenAI

from clawplatform.env import BadSettings, read_env
from examples.demo.client import ApiError, JsonObject, PlatformClient
from examples.demo.companion import CompanionReport, keep_calling
from examples.demo.platform import DemoProject, PlatformError, create_demo_project, start_platform, stop_platform
from examples.demo.play import Player, Round, play_round
from examples.demo.report import (
    Iteration,
    Outcome,
    StatusLines,
    render_comparison,
    render_last_line,
    render_next,
    render_table,
)
from examples.weather_agent.tasks import generate_tasks

RUN_TIMEOUT_S = 900
DATA_TIMEOUT_S = 300
FOLD_TIMEOUT_S = 30
POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How large the demo is."""

    n_rounds: int
    n_tasks: int
    n_held_out: int
    n_at_once: int
    keep: bool


@dataclass
class Story:
    """What happened, in order."""

    rounds: list[Round] = field(default_factory=list)
    statuses: StatusLines = field(default_factory=StatusLines)
    iterations: list[Iteration] = field(default_factory=list)


class DemoError(Exception):
    """The loop did not close; the message says where."""


def say(text: str) -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


async def wait_for_step(platform: PlatformClient, run_id: str, *, step: int, statuses: StatusLines) -> JsonObject:
    """Return the run once `step` of it is trained and the version it published is live."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    status = ""
    while time.monotonic() < deadline:
        run = await platform.get_run(run_id)
        status = run["status_line"]
        if news := statuses.tell(status):
            say(f"    run: {news}")
        if run["state"] in {"failed", "cancelled"}:
            raise DemoError(f"the run {run['state']}: {run['error']}")
        if run["steps_done"] >= step and await _is_newest_live(platform):
            return run
        await asyncio.sleep(POLL_S)
    raise DemoError(f"step {step} of the run took longer than {RUN_TIMEOUT_S} s: {status}")


async def _is_newest_live(platform: PlatformClient) -> bool:
    newest = (await platform.list_versions())[0]
    if newest["state"] == "failed":
        raise DemoError(f"version {newest['number']} did not pass: {newest['error']}")
    return "live" in newest["aliases"]


def _require_played(done: Round) -> None:
    if not done.rewards:
        raise DemoError(f"no task could be played: {done.failures[0] if done.failures else 'none was given'}")


async def train(player: Player, settings: Settings, story: Story) -> None:
    """Play, train, let the version go live; `n_rounds` times, in one run. A run that cannot go on is cancelled."""
    first = await _play_training_tasks(player, settings, story, number=1)
    recipe = {
        "n_steps": settings.n_rounds,
        "trajectories_per_step": settings.n_tasks,
        "wait_for_data_s": DATA_TIMEOUT_S,
    }
    run = await player.platform.launch_run(name="demo", recipe=recipe, selection={})
    say(f"    run {run['id']} launched")
    try:
        await _finish_round(player.platform, run["id"], story, number=1, done=first)
        for number in range(2, settings.n_rounds + 1):
            done = await _play_training_tasks(player, settings, story, number=number)
            await _finish_round(player.platform, run["id"], story, number=number, done=done)
    except (DemoError, ApiError, asyncio.CancelledError):
        await player.platform.cancel_run(run["id"])
        raise


async def _play_training_tasks(player: Player, settings: Settings, story: Story, *, number: int) -> Round:
    tasks = generate_tasks(settings.n_tasks, channel="train", seed=number)
    done = await play_round(player, tasks, channel="train")
    story.rounds.append(done)
    _require_played(done)
    say(f"round {number}: {len(done.rewards)} tasks played, reward {done.reward:.2f}")
    return done


async def _finish_round(platform: PlatformClient, run_id: str, story: Story, *, number: int, done: Round) -> None:
    await wait_for_step(platform, run_id, step=number, statuses=story.statuses)
    point = (await platform.get_metrics(run_id))[-1]
    story.iterations.append(
        Iteration(
            number=number,
            spoken_by=f"v{number - 1}",
            reward=done.reward,
            share_perfect=done.share_perfect,
            metrics=point["values"],
            seconds=time.monotonic() - done.started,
        )
    )


async def find_in_pool(platform: PlatformClient, ids: list[str]) -> tuple[int, int]:
    """Return how many of the answers `ids` are steps of the pool, and how many trajectories it holds.

    The recorder folds off the hot path, so the last ones may take a moment.
    """
    deadline = time.monotonic() + FOLD_TIMEOUT_S
    while True:
        n_found, n_trajectories = await _count_pool(platform, ids)
        if n_found == len(ids) or time.monotonic() > deadline:
            return n_found, n_trajectories
        await asyncio.sleep(POLL_S)


async def _count_pool(platform: PlatformClient, ids: list[str]) -> tuple[int, int]:
    found: set[str] = set()
    n_trajectories = 0
    async for trajectory in platform.iterate_trajectories():
        n_trajectories += 1
        found.update([step["response_id"] async for step in platform.iterate_steps(trajectory["id"])])
    return len(found.intersection(ids)), n_trajectories


async def close_the_loop(project: DemoProject, settings: Settings, *, started: float) -> Outcome:
    """Evaluate, train, evaluate again, while the companion calls."""
    report, stop, story = CompanionReport(), asyncio.Event(), Story()
    async with (
        PlatformClient(project.base_url, project.manage_key) as platform,
        AsyncOpenAI(
            base_url=f"{project.base_url}/v1",
            api_key=project.companion_key,
            max_retries=0,
            default_headers={"x-session-id": "companion"},
        ) as other,
    ):
        player = Player(platform=platform, agent_key=project.agent_key, n_at_once=settings.n_at_once)
        held_out = generate_tasks(settings.n_held_out, channel="val", seed=0)
        before = await play_round(player, held_out, channel="val")
        _require_played(before)
        say(f"held-out before: reward {before.reward:.2f}, without a fault {before.share_perfect:.2f}")
        companion = asyncio.create_task(keep_calling(other, report, stop=stop))
        try:
            await train(player, settings, story)
        finally:
            stop.set()
            await companion
        after = await play_round(player, held_out, channel="val")
        say(f"held-out after: reward {after.reward:.2f}, without a fault {after.share_perfect:.2f}\n")
        say(render_table(story.iterations))
        return await _sum_up(platform, report, [before, *story.rounds, after], started=started)


async def _sum_up(platform: PlatformClient, report: CompanionReport, rounds: list[Round], *, started: float) -> Outcome:
    answered = report.response_ids + [response_id for each in rounds for response_id in each.response_ids]
    n_steps, n_trajectories = await find_in_pool(platform, answered)
    trained = [version for version in await platform.list_versions() if version["number"] > 0]
    checks = [version["verification"] for version in trained]
    for failure in [*report.failures, *(failure for each in rounds for failure in each.failures)]:
        say(f"failed request: {failure}")
    return Outcome(
        steps=n_steps,
        trajectories=n_trajectories,
        reward_before=rounds[0].reward,
        reward_after=rounds[-1].reward,
        perfect_before=rounds[0].share_perfect,
        perfect_after=rounds[-1].share_perfect,
        versions=len(trained),
        failed_requests=len(report.failures) + sum(len(each.failures) for each in rounds),
        lost_steps=len(answered) - n_steps,
        mean_logprob_diff=max((check["mean_abs_diff"] for check in checks), default=0.0),
        max_logprob_diff=max((check["max_abs_diff"] for check in checks), default=0.0),
        companion_calls=len(report.response_ids),
        companion_versions=len(report.versions),
        seconds=time.monotonic() - started,
    )


async def run_demo(settings: Settings) -> int:
    """Return the exit code."""
    started = time.monotonic()
    base_url = read_env().local_url
    process = await start_platform(base_url, say=say)
    try:
        project = await create_demo_project(base_url)
        say(f"project {project.slug}: {project.base_url}/p/{project.slug}/")
        outcome = await close_the_loop(project, settings, started=started)
        say("\n" + render_comparison(outcome, n_held_out=settings.n_held_out) + "\n")
        stays = settings.keep or process is None
        say(render_next(f"{project.base_url}/p/{project.slug}/", base_url=project.base_url, stays=stays) + "\n")
    finally:
        if not settings.keep:
            await stop_platform(process)
    for fault in outcome.faults:
        say(f"FAULT: {fault}")
    say(render_last_line(outcome))
    return 1 if outcome.faults else 0


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=32, help="tasks a round")
    parser.add_argument("--held-out", type=int, default=48)
    parser.add_argument("--at-once", type=int, default=16, help="episodes at once")
    parser.add_argument("--keep", action="store_true", help="leave the platform running")
    given = parser.parse_args()
    settings = Settings(
        n_rounds=given.rounds, n_tasks=given.tasks, n_held_out=given.held_out, n_at_once=given.at_once, keep=given.keep
    )
    try:
        return asyncio.run(run_demo(settings))
    except (BadSettings, PlatformError, DemoError, ApiError) as error:
        say(f"FAULT: {error}")
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
