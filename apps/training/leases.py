"""Trajectories lent to one step of a run, and what becomes of them: trained, skipped or given back.

The ledger (`BatchTrajectory`) is the only truth on what was used; each change is one transaction. Never blocks: rows
that another transaction holds are passed over, and what is not ready blocks nothing.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.core.contracts.training import TrainBatch, TrainerEvent, adapter_dir
from apps.core.counted import count_of
from apps.core.errors import Conflict
from apps.registry.models import Version, VersionKind, VersionState
from apps.registry.services import VersionFiles, publish_version
from apps.training.choices import HINDSIGHT
from apps.training.collecting import Collected, Facts, Lent, choose_probe, collect_samples
from apps.training.estimators import BaselineState
from apps.training.fence import lock_attempt
from apps.training.hindsight import collect_hinted
from apps.training.history import record_run_event
from apps.training.label_batches import collect_corrections, collect_judged
from apps.training.label_pool import count_uses
from apps.training.lending import current_version, lend_trajectories, open_pool
from apps.training.models import Attempt, Batch, BatchState, BatchTrajectory, Metric, Run
from apps.training.pool import READY, describe_counts, trace_line
from apps.training.recipes import read_recipe

LARGEST_GAP = 0.1  # nats a token; engines in bf16 stay below 0.05


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
    lent = lend_trajectories(open_pool(run), read_recipe(run.recipe))
    return _lease_new_batch(run, lent, step=step) if lent else None


def _lease_new_batch(run: Run, lent: Lent, *, step: int) -> TrainBatch | None:
    found = collect_batch(run, lent)
    batch = Batch.objects.create(
        run=run,
        step=step,
        state=BatchState.SKIPPED if found.is_empty else BatchState.LEASED,
        baseline_after=asdict(found.baseline),
        reward_mean=lent.reward_mean,
        staleness_mean=found.staleness,
        n_samples=found.n_samples,
        discards=found.discards,
    )
    BatchTrajectory.objects.bulk_create(_enter(run, batch, lent))
    n_trajectories = len(lent.trajectories)
    if found.is_empty:
        _pass_over(run, batch, n_trajectories=n_trajectories)
        return None
    record_run_event(
        run,
        "batch.leased",
        f"step {step} takes {count_of(n_trajectories, 'trajectory', 'trajectories')}, "
        f"{count_of(found.n_samples, 'model call')}",
    )
    return _build_batch(batch, found)


def _enter(run: Run, batch: Batch, lent: Lent) -> Iterator[BatchTrajectory]:
    recipe = read_recipe(run.recipe)
    n_uses = count_uses(run) if recipe.learns_from_labels else {}
    for row in lent.trajectories:
        yield BatchTrajectory(
            batch=batch,
            policy=run.policy,
            trajectory=row,
            reward=lent.rewards[row.id],
            facts=asdict(lent.facts[row.id]) if row.id in lent.facts else {},
            use=f"{run.id}/{n_uses.get(row.id, 0)}" if recipe.learns_from_labels else "",
        )


def collect_batch(run: Run, lent: Lent) -> Collected:
    """Return what the run's recipe learns from what was lent."""
    recipe, baseline = read_recipe(run.recipe), read_baseline(run)
    if recipe.learns_from_labels:
        return collect_judged(lent, recipe=recipe, policy=run.policy, baseline=baseline)
    line = trace_line(current_version(run), max_staleness=int(recipe.own("max_staleness")))
    collect = collect_hinted if recipe.algorithm == HINDSIGHT else collect_samples
    found = collect(lent, recipe=recipe, baseline=baseline, line=line)
    if recipe.sft_weight is None or found.is_empty:
        return found
    return replace(found, judged=collect_corrections(lent, recipe=recipe, policy=run.policy))


def _build_batch(batch: Batch, found: Collected) -> TrainBatch:
    return TrainBatch(
        step=batch.step,
        samples=tuple(found.samples),
        judged=tuple(found.judged),
        probe=choose_probe(found.samples),
        reward_mean=batch.reward_mean,
    )


def _pass_over(run: Run, batch: Batch, *, n_trajectories: int) -> None:
    """Learn at least the mean from what has nothing else to teach."""
    run.baseline = batch.baseline_after
    run.save(update_fields=["baseline"])
    why = "nothing in them is accepted, corrected or comparable any more"
    if not read_recipe(run.recipe).learns_from_labels:
        why = "all rewards equal their baseline, so they teach nothing"
    were = f"{count_of(n_trajectories, 'trajectory', 'trajectories')} {'was' if n_trajectories == 1 else 'were'}"
    words = f"{were} passed over: {why}"
    record_run_event(run, "batch.skipped", words)


def _rebuild_batch(run: Run, batch: Batch) -> TrainBatch | None:
    """The same entries, rewards and baseline give the same batch, but for steps that a person has kept out since."""
    entries = batch.entries.filter(is_active=True).select_related("trajectory").order_by("trajectory_id")
    lent = Lent(
        trajectories=[entry.trajectory for entry in entries],
        rewards={entry.trajectory_id: entry.reward for entry in entries},
        facts={entry.trajectory_id: Facts(**entry.facts) for entry in entries},
    )
    found = collect_batch(run, lent)
    if found.is_empty:
        release_batches(run)
        record_run_event(run, "batch.released", f"step {batch.step} was given back: nothing is left of it to train on")
        return None
    return _build_batch(batch, found)


def read_baseline(run: Run) -> BaselineState:
    """Return the baseline after the last acknowledged batch."""
    return BaselineState.of_json(run.baseline)


@transaction.atomic
def acknowledge_step(attempt: Attempt, event: TrainerEvent) -> int:
    """Take over a finished step: batch used up, baseline and metrics stored, version published. Returns the steps done.

    A step that was acknowledged before changes nothing. Raises AttemptLost, and Conflict when the steps do not follow.
    """
    run = lock_attempt(attempt)
    if event.step <= run.steps_done:
        return run.steps_done
    if event.step != run.steps_done + 1:
        raise Conflict(f"the trainer reports step {event.step}, but step {run.steps_done + 1} is next")
    batch = _take_batch(run, step=event.step)
    n_trajectories = batch.entries.filter(is_active=True).count()
    version = _publish(run, event, n_trajectories=n_trajectories)
    batch.state, batch.trained_at, batch.version = BatchState.TRAINED, timezone.now(), version
    batch.save(update_fields=["state", "trained_at", "version"])
    Metric.objects.create(
        run=run, attempt=attempt, step=event.step, values=_values(event, batch, n_trajectories=n_trajectories)
    )
    run.baseline, run.steps_done = batch.baseline_after, event.step
    run.save(update_fields=["baseline", "steps_done"])
    made = f"it made version {version.number}" if version else f"the reward model so far: {adapter_dir(event.step)}"
    record_run_event(run, "step.done", f"step {event.step} of {run.n_steps} is trained; {made}")
    _warn_of_gap(run, event)
    return run.steps_done


def _publish(run: Run, event: TrainerEvent, *, n_trajectories: int) -> Version | None:
    """Make a version of what the step trained, if that is a policy."""
    recipe = read_recipe(run.recipe)
    if not recipe.makes_versions:
        return None
    if event.adapter is None or event.probe is None:
        raise Conflict(f"the trainer reports step {event.step} without an adapter, or without log-probs to check it by")
    return publish_version(
        policy=run.policy,
        parent=current_version(run),
        files=VersionFiles(
            path=event.adapter.path,
            sha256=event.adapter.sha256,
            kind=VersionKind.WHOLE if recipe.tuning == "full" else VersionKind.ADAPTER,
        ),
        lineage={"run_id": run.id, "step": event.step, "n_trajectories": n_trajectories},
        probe=event.probe,
        goes_live=bool(recipe.promote),
    )


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
        **({} if batch.reward_mean is None else {"reward_mean": batch.reward_mean}),
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
    pool = open_pool(run)
    counts = pool.count_by_readiness()
    n_wanted = read_recipe(run.recipe).trajectories_per_step
    blind = f"; what {run.launched_by} reviews blind waits until they have said theirs" if pool.hidden else ""
    return f"{counts.get(READY, 0)} of {n_wanted} ready; {describe_counts(counts)}{blind}"


def describe_failed_version(run_id: str) -> str:
    """Return why the run's newest version cannot serve, "" if it can: going on would teach what nobody speaks."""
    batch = (
        Batch.objects.filter(run_id=run_id, version__isnull=False).select_related("version").order_by("-step").first()
    )
    version: Any = batch.version if batch else None
    if version is None or version.state != VersionState.FAILED:
        return ""
    return f"version {version.number} did not pass its check: {version.error}"
