"""Trajectories lent to one step of a run, and what becomes of them: trained, skipped or given back.

The ledger (`BatchTrajectory`) is the only truth on what was used; each change is one transaction. Never blocks: rows
that another transaction holds are passed over, and what is not ready blocks nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.core.contracts.training import Probe, TrainBatch, TrainerEvent, TrainSample
from apps.core.errors import Conflict
from apps.registry.models import Version, VersionState
from apps.registry.services import publish_version
from apps.training.batching import DiscardReason, StepFacts, discard_reason
from apps.training.estimators import BaselineState, Scored, are_all_zero, compute_advantages
from apps.training.fence import lock_attempt
from apps.training.history import record_run_event
from apps.training.models import Attempt, Batch, BatchState, BatchTrajectory, Metric, Run
from apps.training.pool import READY, Pool, describe_counts, trace_line
from apps.training.recipes import RecipeConfig, read_recipe
from apps.training.selection import read_selection
from apps.trajectories.models import ExchangeStatus, SideCall, Step, Trajectory
from apps.trajectories.trie import StepView, load_steps

PROBE_TOKENS = 256
LARGEST_GAP = 0.1  # nats a token; engines in bf16 stay below 0.05


CUT_OFF = "length"  # how an answer ends that reached its token limit


@dataclass(frozen=True, kw_only=True)
class Lent:
    """Trajectories that go into one batch, with the rewards they had when they were lent."""

    trajectories: Sequence[Trajectory]
    rewards: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a batch trains on, why other steps are left out, how old it is, and the baseline after it."""

    samples: list[TrainSample]
    discards: dict[str, int]
    staleness: float
    baseline: BaselineState


@transaction.atomic
def lease_batch(attempt: Attempt, *, step: int) -> TrainBatch | None:
    """Return the batch of `step`: the one leased before, unchanged, or a new one; None when too little is ready.

    Trajectories that have nothing to teach (every advantage zero) are used up with a line in the history, and None is
    returned: the next call sees what came after them. Raises AttemptLost.
    """
    run = lock_attempt(attempt)
    leased = Batch.objects.filter(run=run, step=step, state=BatchState.LEASED).first()
    if leased is not None:
        return _rebuild_batch(run, leased)
    pool = open_pool(run)
    picked = pick_trajectories(pool, read_recipe(run.recipe))
    return _lease_new_batch(run, picked, step=step, line=pool.line) if picked else None


def _lease_new_batch(
    run: Run, picked: Sequence[Trajectory], *, step: int, line: Mapping[str, int]
) -> TrainBatch | None:
    lent = Lent(trajectories=picked, rewards={row.id: row.reward or 0.0 for row in picked})
    found = collect_samples(lent, recipe=read_recipe(run.recipe), baseline=read_baseline(run), line=line)
    is_empty = are_all_zero(sample.advantage for sample in found.samples)
    batch = Batch.objects.create(
        run=run,
        step=step,
        state=BatchState.SKIPPED if is_empty else BatchState.LEASED,
        baseline_after=asdict(found.baseline),
        reward_mean=sum(lent.rewards.values()) / len(picked),
        staleness_mean=found.staleness,
        n_samples=len(found.samples),
        discards=found.discards,
    )
    BatchTrajectory.objects.bulk_create(
        BatchTrajectory(batch=batch, policy=run.policy, trajectory=row, reward=lent.rewards[row.id]) for row in picked
    )
    if is_empty:
        _pass_over(run, batch, n_trajectories=len(picked))
        return None
    record_run_event(run, "batch.leased", f"step {step} takes {len(picked)} trajectories, {len(found.samples)} steps")
    return _make_batch(batch, found.samples)


def _pass_over(run: Run, batch: Batch, *, n_trajectories: int) -> None:
    """Learn at least the mean from what has nothing else to teach."""
    run.baseline = batch.baseline_after
    run.save(update_fields=["baseline"])
    words = f"{n_trajectories} trajectories were passed over: all rewards equal their baseline, so they teach nothing"
    record_run_event(run, "batch.skipped", words)


def _rebuild_batch(run: Run, batch: Batch) -> TrainBatch | None:
    """The same entries, rewards and baseline give the same batch, but for steps that a person has kept out since."""
    entries = batch.entries.filter(is_active=True).select_related("trajectory").order_by("trajectory_id")
    lent = Lent(
        trajectories=[entry.trajectory for entry in entries],
        rewards={entry.trajectory_id: entry.reward for entry in entries},
    )
    recipe, line = read_recipe(run.recipe), open_pool(run).line
    samples = collect_samples(lent, recipe=recipe, baseline=read_baseline(run), line=line).samples
    if are_all_zero(sample.advantage for sample in samples):
        release_batches(run)
        record_run_event(run, "batch.released", f"step {batch.step} was given back: nothing is left of it to train on")
        return None
    return _make_batch(batch, samples)


def _make_batch(batch: Batch, samples: Sequence[TrainSample]) -> TrainBatch:
    return TrainBatch(
        step=batch.step, samples=tuple(samples), probe=choose_probe(samples), reward_mean=batch.reward_mean
    )


def open_pool(run: Run) -> Pool:
    """Return the run's view of the pool, as of the version in training."""
    recipe = read_recipe(run.recipe)
    line = trace_line(current_version(run), max_staleness=recipe.max_staleness)
    return Pool(policy=run.policy, selection=read_selection(run.selection), line=line)


def current_version(run: Run) -> Version:
    """Return the version whose weights the trainer holds: the run's last one, or the one it started from."""
    batch = Batch.objects.filter(run=run, version__isnull=False).select_related("version").order_by("-step").first()
    return batch.version if batch is not None and batch.version is not None else run.start_version


def read_baseline(run: Run) -> BaselineState:
    """Return the baseline after the last acknowledged batch."""
    return BaselineState.of_json(run.baseline)


def pick_trajectories(pool: Pool, recipe: RecipeConfig) -> list[Trajectory]:
    """Return enough ready trajectories for one step, locked, by id; [] when there are too few.

    With groups, whole ones only: any `group_size` ready tries at one prompt are a group.
    """
    ready = pool.ready().select_for_update(of=("self",), skip_locked=True)
    if not recipe.group_size:
        picked = list(ready[: recipe.trajectories_per_step])
        return picked if len(picked) == recipe.trajectories_per_step else []
    groups = whole_groups(list(ready.exclude(group="")), group_size=recipe.group_size)
    picked = [row for group in groups[: recipe.trajectories_per_step // recipe.group_size] for row in group]
    return sorted(picked, key=lambda row: row.id) if len(picked) == recipe.trajectories_per_step else []


def whole_groups(rows: Sequence[Trajectory], *, group_size: int) -> list[list[Trajectory]]:
    """Return the complete groups, in the order in which they were completed."""
    waiting: dict[str, list[Trajectory]] = defaultdict(list)
    whole = []
    for row in rows:
        waiting[row.group].append(row)
        if len(waiting[row.group]) == group_size:
            whole.append(waiting.pop(row.group))
    return whole


def collect_samples(lent: Lent, *, recipe: RecipeConfig, baseline: BaselineState, line: Mapping[str, int]) -> Collected:
    """Return the trainable steps with their trajectory's advantage, and those left out by reason."""
    discards: Counter[DiscardReason] = Counter()
    usable = {
        row.id: list(_usable_steps(row, lent, recipe=recipe, line=line, discards=discards)) for row in lent.trajectories
    }
    scored = [_score(row, usable[row.id], reward=lent.rewards[row.id]) for row in lent.trajectories]
    advantages, baseline = compute_advantages(scored, recipe=recipe, baseline=baseline)
    samples, distances = [], []
    for trajectory_id, advantage in advantages.items():
        if advantage == 0 and recipe.drop_without_signal:
            discards[DiscardReason.NO_SIGNAL] += len(usable[trajectory_id])
            continue
        samples += [_sample(view, advantage=advantage) for view in usable[trajectory_id]]
        distances += [line[view.row.version_id or ""] for view in usable[trajectory_id]]
    return Collected(
        samples=samples,
        discards={reason.name.lower(): n for reason, n in discards.items()},
        staleness=sum(distances) / max(1, len(distances)),
        baseline=baseline,
    )


def _usable_steps(
    trajectory: Trajectory,
    lent: Lent,
    *,
    recipe: RecipeConfig,
    line: Mapping[str, int],
    discards: Counter[DiscardReason],
) -> Iterator[StepView]:
    """Yield the steps that may carry a gradient; count the others."""
    for view in load_steps(trajectory, with_messages=False):
        facts = _facts(view.row, lent, staleness=line.get(view.row.version_id or ""))
        reason = discard_reason(facts, max_staleness=len(line), drops_cut_off=recipe.drop_cut_off)
        if reason is None:
            yield view
        else:
            discards[reason] += 1


def _score(trajectory: Trajectory, views: Sequence[StepView], *, reward: float) -> Scored:
    """A reward counts for the baseline even where no step is left to train on."""
    lengths = [len(view.completion_ids) for view in views]
    return Scored(
        trajectory_id=trajectory.id,
        reward=reward,
        group=trajectory.group,
        source=trajectory.agent_id,
        n_tokens=sum(lengths),
        longest=max(lengths, default=0),
    )


def _facts(step: Step, lent: Lent, *, staleness: int | None) -> StepFacts:
    return StepFacts(
        is_complete=step.status == ExchangeStatus.COMPLETE,
        reward=lent.rewards[step.trajectory_id],
        is_excluded=step.is_excluded,
        is_side_call=step.side_call != SideCall.NONE,
        is_already_trained=False,
        is_text_only=not step.is_exact,
        is_constrained=bool(step.constraints),
        n_completion_tokens=step.n_completion_tokens,
        temperature=step.temperature,
        top_p=step.top_p,
        top_k=step.top_k,
        staleness=staleness,
        is_cut_off=step.finish_reason == CUT_OFF,
    )


def _sample(view: StepView, *, advantage: float) -> TrainSample:
    return TrainSample(
        step_id=view.row.id,
        trajectory_id=view.row.trajectory_id,
        prompt_ids=tuple(view.prompt_ids),
        completion_ids=tuple(view.completion_ids),
        logprobs=tuple(view.logprobs),
        advantage=advantage,
        temperature=view.row.temperature,
    )


def choose_probe(samples: Sequence[TrainSample]) -> Probe:
    """Return real tokens on which trainer and engine must agree afterwards: the shortest sample, cut."""
    shortest = min(samples, key=lambda sample: len(sample.prompt_ids) + len(sample.completion_ids))
    return Probe(token_ids=(shortest.prompt_ids + shortest.completion_ids)[:PROBE_TOKENS])


@transaction.atomic
def acknowledge_step(attempt: Attempt, event: TrainerEvent) -> int:
    """Take over a finished step: batch used up, baseline and metrics stored, version published. Returns the steps done.

    A step that was acknowledged before changes nothing. Raises AttemptLost, and Conflict when the steps do not follow.
    """
    run = lock_attempt(attempt)
    if event.step <= run.steps_done:
        return run.steps_done
    if event.step != run.steps_done + 1 or event.adapter is None or event.probe is None:
        raise Conflict(f"the trainer reports step {event.step}, but step {run.steps_done + 1} is next")
    batch = _take_batch(run, step=event.step)
    n_trajectories = batch.entries.filter(is_active=True).count()
    version = publish_version(
        policy=run.policy,
        parent=current_version(run),
        adapter_path=event.adapter.path,
        sha256=event.adapter.sha256,
        lineage={"run_id": run.id, "step": event.step, "n_trajectories": n_trajectories},
        probe=event.probe,
        goes_live=read_recipe(run.recipe).promote,
    )
    batch.state, batch.trained_at, batch.version = BatchState.TRAINED, timezone.now(), version
    batch.save(update_fields=["state", "trained_at", "version"])
    Metric.objects.create(
        run=run, attempt=attempt, step=event.step, values=_values(event, batch, n_trajectories=n_trajectories)
    )
    run.baseline, run.steps_done = batch.baseline_after, event.step
    run.save(update_fields=["baseline", "steps_done"])
    record_run_event(
        run, "step.done", f"step {event.step} of {run.n_steps} is trained; it made version {version.number}"
    )
    _warn_of_gap(run, event)
    return run.steps_done


def _warn_of_gap(run: Run, event: TrainerEvent) -> None:
    gap = event.metrics.get("mean_logprob_diff", 0.0)
    if gap > LARGEST_GAP:
        words = (
            f"trainer and engine differ by {gap:.2g} nats a token before any update of step {event.step}: they compute "
            "differently, or the answers were not sampled as recorded; a correction in the recipe bounds the harm"
        )
        record_run_event(run, "step.gap", words)


def _take_batch(run: Run, *, step: int) -> Batch:
    """The leased batch; or, when a cancel gave it back before its end was known, that one again."""
    leased = Batch.objects.filter(run=run, step=step, state=BatchState.LEASED).first()
    if leased is not None:
        return leased
    released = Batch.objects.filter(run=run, step=step, state=BatchState.RELEASED).order_by("-id").first()
    if released is None:
        raise Conflict(f"the trainer reports step {step}, but no batch was leased for it")
    try:
        with transaction.atomic():
            released.entries.update(is_active=True)
    except IntegrityError as error:
        raise Conflict(
            f"step {step} was trained on trajectories that another run has used since; launch a new run"
        ) from error
    return released


def _values(event: TrainerEvent, batch: Batch, *, n_trajectories: int) -> dict[str, float]:
    return {
        **event.metrics,
        "reward_mean": batch.reward_mean,
        "staleness_mean": batch.staleness_mean,
        "trajectories": n_trajectories,
        "discards": sum(batch.discards.values()),
    }


def release_batches(run: Run) -> None:
    """Inside a transaction: give back what is leased and not trained."""
    leased = Batch.objects.filter(run=run, state=BatchState.LEASED)
    BatchTrajectory.objects.filter(batch__in=leased).update(is_active=False)
    leased.update(state=BatchState.RELEASED)


def list_leased_steps(run: Run) -> list[int]:
    """Return the steps whose batches are out; at most one by the order of things."""
    return list(Batch.objects.filter(run=run, state=BatchState.LEASED).values_list("step", flat=True))


def describe_wait(attempt: Attempt) -> str:
    """Return in words how much is ready, of how much, and why the rest is not."""
    run = Run.objects.select_related("policy", "start_version").get(pk=attempt.run_id)
    counts = open_pool(run).count_by_readiness()
    n_wanted = read_recipe(run.recipe).trajectories_per_step
    return f"{counts.get(READY, 0)} of {n_wanted} ready; {describe_counts(counts)}"


def describe_failed_version(run_id: str) -> str:
    """Return why the run's newest version cannot serve, "" if it can: going on would teach what nobody speaks."""
    batch = (
        Batch.objects.filter(run_id=run_id, version__isnull=False).select_related("version").order_by("-step").first()
    )
    version: Any = batch.version if batch else None
    if version is None or version.state != VersionState.FAILED:
        return ""
    return f"version {version.number} did not pass its check: {version.error}"
