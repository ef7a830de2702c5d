"""A project that looks like one in use: the pictures of the console are taken of it. Chance is seeded."""

import json
import math
import random
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Sum
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Agent, ApiKey, Project, User
from apps.feedback.services import add_label
from apps.registry.models import Alias, AliasName, Deployment, DeploymentState, EngineState, Version
from apps.registry.services import ensure_policy
from apps.training.models import (
    Attempt,
    AttemptState,
    Batch,
    BatchState,
    BatchTrajectory,
    Metric,
    Run,
    RunEvent,
    RunState,
)
from apps.trajectories.models import Step, Trajectory
from tests.factories.accounts import AgentFactory, ApiKeyFactory
from tests.factories.registry import EngineFactory, VersionFactory
from tests.factories.trajectories import StepFactory, TrajectoryFactory

SYSTEM = "You are the clerk of a small shop. Look things up with the tools before you answer. Be brief and kind."
QUESTIONS = (
    ("What is the weather in Lisbon tomorrow?", "get_weather", {"city": "Lisbon", "days": 1}),
    ("My order 8812 has not arrived, where is it?", "find_order", {"order": 8812}),
    ("Do I need an umbrella in Bergen?", "get_weather", {"city": "Bergen", "days": 1}),
    ("Please refund the blue kettle, it came without a lid", "refund", {"item": "blue kettle", "reason": "no lid"}),
    ("Is it late in Osaka right now?", "get_time", {"city": "Osaka"}),
    ("Cancel my subscription but keep the address", "find_customer", {"by": "session"}),
    ("Find the invoice from March and tell me the VAT", "find_invoice", {"month": "2026-03"}),
)
ANSWER = "Yes, I looked it up for you: it is on its way and should be with you tomorrow before noon. Anything else?"
TOKENS = {11 + 283 * number: piece for number, piece in enumerate(re.findall(r" ?\w+|[^\w\s]", ANSWER))}  # their texts
TOPS = {  # after each of them: how many are likely next
    token_id: [-math.log(n_likely)] * n_likely
    for token_id, n_likely in zip(TOKENS, (1, 2, 1, 4, 1, 8, 1, 1, 16, 2) * 4, strict=False)
}
N_STEPS, STEPS_DONE = 24, 13


@dataclass(frozen=True, kw_only=True)
class Showcase:
    """What the pictures show."""

    trajectory: Trajectory
    run: Run
    version: Version  # that said most, and is on the engine


def build_showcase(*, project: Project, owner: User, engine_url: str) -> Showcase:
    """Fill the project; its engine is at `engine_url`, and knows the texts of `TOKENS`."""
    chance = random.Random(4)
    Project.objects.filter(pk=project.pk).update(name="Shop assistant")
    clerk = AgentFactory.create(project=project, name="Shop clerk", slug="shop-clerk")
    claw = AgentFactory.create(project=project, name="OpenClaw on the Mac mini", slug="openclaw")
    keys = {agent.id: ApiKeyFactory.create(agent=agent, name="laptop", created_by=owner) for agent in (clerk, claw)}
    versions = _add_versions(project, engine_url)
    rows = [_add_trajectory(number, (clerk, claw), keys, versions, chance) for number in range(60)]
    for number, row in enumerate(rows[:54]):
        if number % 5 != 4:
            value = round(max(-1.0, min(1.0, chance.gauss(0.1 + number / 80, 0.45))), 2)
            add_label(caller=Caller(key=keys[row.agent_id]), trajectory=row, value=value)
    shown = rows[52]
    n_tokens = shown.steps.aggregate(prompt=Sum("n_prompt_tokens"), completion=Sum("n_completion_tokens"))
    Trajectory.objects.filter(pk=shown.pk).update(
        n_prompt_tokens=n_tokens["prompt"], n_completion_tokens=n_tokens["completion"]
    )
    add_label(
        caller=Caller(user=owner), trajectory=shown, value=1.0, text="Looked it up before answering, and was kind."
    )
    run = _add_run(project, owner, versions, rows, chance)
    return Showcase(trajectory=shown, run=run, version=versions[4])


def _add_versions(project: Project, engine_url: str) -> list[Version]:
    policy = ensure_policy(
        project=project, slug="shop", base_model="smollm2-135m-instruct", base_model_dir="models/base"
    )
    now = timezone.now()
    engine = EngineFactory.create(
        base_url=engine_url, base_model=policy.base_model, state=EngineState.UP, last_seen_at=now
    )
    versions = [policy.versions.get()]
    for number in range(1, 5):
        verification = {"mean_abs_diff": 0.012 + 0.001 * number, "max_abs_diff": 0.31}
        version = VersionFactory.create(
            policy=policy,
            number=number,
            parent=versions[-1],
            adapter_path=f"/runs/first/adapters/step-{number}",
            sha256=f"{number:02x}" * 32,
            verification=verification,
        )
        versions.append(version)
    Deployment.objects.create(version=versions[4], engine=engine, state=DeploymentState.LOADED)
    Alias.objects.filter(policy=policy, name=AliasName.LIVE).update(version=versions[4], switched_at=timezone.now())
    Alias.objects.create(policy=policy, name=AliasName.PREVIOUS, version=versions[3])
    return versions


def _add_trajectory(
    number: int, agents: tuple[Agent, Agent], keys: dict[str, ApiKey], versions: list[Version], chance: random.Random
) -> Trajectory:
    agent = agents[number % 3 == 0]
    question, tool, arguments = QUESTIONS[number % len(QUESTIONS)]
    began = timezone.now() - timedelta(minutes=62 - number)
    is_open = number > 57
    row = TrajectoryFactory.create(
        agent=agent,
        key=keys[agent.id],
        title=question,
        started_at=began,
        last_step_at=began + timedelta(seconds=chance.randint(3, 50)),
        state="open" if is_open else "complete",
        completed_at=None if is_open else began,
        channel="val" if number % 11 == 0 else "train",
        n_steps=2,
        n_prompt_tokens=chance.randint(400, 9000),
        n_completion_tokens=chance.randint(40, 400),
    )
    _add_steps(row, question, tool, arguments, versions[min(4, number // 12)], began, chance)
    return row


def _add_steps(
    row: Trajectory,
    question: str,
    tool: str,
    arguments: dict[str, Any],
    version: Version,
    began: datetime,
    chance: random.Random,
) -> None:
    call = {"id": "call7f3a2b", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
    first: Step = StepFactory.create(
        trajectory=row,
        index=0,
        version=version,
        messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
        answer=json.dumps({"role": "assistant", "content": None, "tool_calls": [call]}).encode(),
        prompt_ids=list(range(180)),
        completion_ids=list(range(29)),
        token_logprobs=_logprobs(29, chance),
        temperature=0.8,
        started_at=began,
        ended_at=began + timedelta(seconds=1.2),
    )
    StepFactory.create(
        trajectory=row,
        index=1,
        version=version,
        parent=first,
        shared_messages=3,
        messages=[{"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"state": "on its way"})}],
        text=ANSWER,
        prompt_ids=list(range(40)),
        completion_ids=list(TOKENS),
        token_logprobs=_logprobs(len(TOKENS), chance),
        temperature=0.8,
        started_at=began + timedelta(seconds=2),
        ended_at=began + timedelta(seconds=4.1),
    )


def _logprobs(n: int, chance: random.Random) -> list[float]:
    return [-chance.expovariate(1.4) if chance.random() < 0.4 else -0.06 * chance.random() for _ in range(n)]


def _add_run(
    project: Project, owner: User, versions: list[Version], rows: list[Trajectory], chance: random.Random
) -> Run:
    now = timezone.now()
    run = Run.objects.create(
        project=project,
        policy=versions[0].policy,
        start_version=versions[0],
        name="warmer tone",
        recipe={"n_steps": N_STEPS, "learning_rate": 3e-4},
        state=RunState.RUNNING,
        n_steps=N_STEPS,
        steps_done=STEPS_DONE,
        status_line="trains step 14 on 48 trajectories",
        launched_by=owner,
        started_at=now - timedelta(minutes=7),
    )
    lost = Attempt.objects.create(run=run, number=1, host="gpu-1", state=AttemptState.LOST, error="stopped reporting")
    attempt = Attempt.objects.create(run=run, number=2, host="gpu-2")
    for step in range(1, STEPS_DONE + 1):
        at = now - timedelta(seconds=31 * (STEPS_DONE + 1 - step) + chance.random() * 4)
        values = _metrics(step, chance)
        if step <= 7:
            Metric.objects.create(run=run, attempt=lost, step=step, values=values, at=at)
        if step >= 6:
            Metric.objects.create(run=run, attempt=attempt, step=step, values=_metrics(step, chance), at=at)
        batch = Batch.objects.create(
            run=run, step=step, state=BatchState.TRAINED, reward_mean=values["reward_mean"], n_samples=96
        )
        for row in rows[3 * step : 3 * step + 3]:
            BatchTrajectory.objects.create(batch=batch, policy=run.policy, trajectory=row, reward=row.reward or 0.0)
    for minutes, words in (
        (7, f"launched by {owner} from version 0"),
        (4, "attempt 1 stopped reporting"),
        (3, "goes on"),
    ):
        RunEvent.objects.create(run=run, kind="run.told", message=words, at=now - timedelta(minutes=minutes))
    return run


def _metrics(step: int, chance: random.Random) -> dict[str, float]:
    done = step / N_STEPS
    return {
        "reward_mean": -0.1 + 0.9 * (1 - math.exp(-3 * done)) + chance.gauss(0, 0.03),
        "loss": -0.06 * math.exp(-2 * done) + chance.gauss(0, 0.005),
        "kl": 0.004 + 0.03 * done + chance.gauss(0, 0.002),
        "ratio_mean": 1 + chance.gauss(0, 0.004),
        "ratio_max": 1.5 + done + chance.random() / 2,
        "ess": 0.98 - 0.1 * done + chance.gauss(0, 0.008),
        "entropy": 1.1 * math.exp(-2.2 * done) + 0.08,
        "clip_fraction": 0.02 + 0.06 * done + chance.gauss(0, 0.005),
        "grad_norm": 0.9 - 0.3 * done + chance.gauss(0, 0.06),
        "mean_logprob_diff": 0.021 + chance.gauss(0, 0.002),
        "tokens_per_s": 1450 + chance.gauss(0, 50),
        "seconds": 17 + chance.gauss(0, 1),
    }
