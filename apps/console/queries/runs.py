"""What the pages of training runs show: state in words, curves, history, batches."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import mean, pstdev

from django.db.models import Max, Min
from django.utils import timezone

from apps.accounts.models import Project
from apps.core.errors import NotFound
from apps.core.ids import is_id
from apps.core.paging import Page as KeysetPage
from apps.core.paging import page_newest_first
from apps.registry.models import Alias, AliasName, Version, VersionState
from apps.training.models import (
    ACTIVE_STATES,
    Attempt,
    Batch,
    BatchState,
    BatchTrajectory,
    Metric,
    Run,
    RunEvent,
    RunState,
)
from apps.training.queries import MEAN, find_hidden_steps, hide_means
from apps.trajectories.blindness import NOTHING, Hidden

PER_PAGE = 50
EVENTS_SHOWN = 100
BATCHES_SHOWN = 50
POINTS_SHOWN = 400
RECENT_STEPS = 10
ENTRIES_SHOWN = 200

TONES = {
    RunState.QUEUED: "idle",
    RunState.RUNNING: "live",
    RunState.CANCELLING: "warn",
    RunState.SUCCEEDED: "good",
    RunState.FAILED: "bad",
    RunState.CANCELLED: "idle",
}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One chart: points of the run as it stands, and those that a later attempt made again."""

    name: str
    title: str
    unit: str
    hint: str
    steps: list[int]
    values: list[float | None]
    lost: list[float | None]

    @property
    def last(self) -> float | None:
        return next((value for value in reversed(self.values) if value is not None), None)

    @property
    def has_lost(self) -> bool:
        return any(value is not None for value in self.lost)

    @property
    def polyline(self) -> str:
        """Points of an SVG line in a box of 300 by 96, for readers without JavaScript."""
        pairs = [(step, value) for step, value in zip(self.steps, self.values, strict=True) if value is not None]
        if not pairs:
            return ""
        if len(pairs) == 1:
            return "4,48 296,48"
        low, high = min(value for _, value in pairs), max(value for _, value in pairs)
        first, last = pairs[0][0], pairs[-1][0]
        across, up = (last - first) or 1, (high - low) or 1
        return " ".join(
            f"{4 + 292 * (step - first) / across:.1f},{92 - 88 * (value - low) / up:.1f}" for step, value in pairs
        )


BELOW_ZERO = frozenset({"reward_mean", "loss", "margin", "reward_good", "reward_bad", "mean_logprob_diff"})
"""Charts whose values may be negative; all others stand on an axis from 0."""

CHARTS: tuple[tuple[str, str, str, str], ...] = (
    ("reward_mean", "Reward", "", "Mean reward of the batch, −1 to 1: this is what should rise"),
    ("loss", "Loss", "", "What the recipe makes small; with rewards it hovers about 0 and says little"),
    (
        "accuracy",
        "Accuracy",
        "",
        "Share of pairs, or of verdicts, that the policy agrees with more than the base model",
    ),
    ("margin", "Margin", "", "How much more the policy likes good answers than bad ones, measured from the base model"),
    ("reward_good", "Liking of good ones", "", "Log-ratio of good answers to the base model, times beta"),
    ("reward_bad", "Liking of bad ones", "", "The same of bad answers"),
    ("kl", "KL", "nats", "Distance from the policy that spoke (k3 estimate): small is calm, a leap is a warning"),
    ("ratio_mean", "Ratio, mean", "", "New over engine's probability; near 1 the answers are the policy's own"),
    (
        "ratio_max",
        "Ratio, max",
        "",
        "The same of the farthest token; far above the mean, single tokens have moved a lot",
    ),
    ("ess", "Effective sample size", "", "1: every sample counts the same; near 0 a few decide alone"),
    ("entropy", "Entropy", "nats", "At the sampling temperature; near 0 the policy has stopped exploring"),
    (
        "clip_fraction",
        "Clipped",
        "",
        "Share of tokens that moved beyond the clip range and stop teaching; 0 on fresh answers is good",
    ),
    ("value_loss", "Critic's loss", "", "How far the critic's expectations were from what came; it should fall"),
    ("masked_fraction", "Masked", "", "Share of tokens that the correction gives no weight; 0 is good"),
    ("step_scale", "Optimizer step taken", "", "What the guard of the sample size left of each step, on average"),
    ("reference_kl", "KL to the base", "nats", "Estimated distance to the base model; 0 where no recipe asks for it"),
    ("grad_norm", "Gradient norm", "", "Before clipping; a leap is a warning"),
    (
        "mean_logprob_diff",
        "Trainer − engine",
        "nats",
        "Mean gap of log-probs before any update; near 0 both compute the same",
    ),
    (
        "staleness_mean",
        "Staleness",
        "versions",
        "How many versions behind the speaking one was, on average; 0 is fresh",
    ),
    ("tokens_per_s", "Tokens/s", "", "Computed by the trainer"),
    ("seconds", "Trainer's time", "s", "Of a training step, without waiting for data and engines"),
)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is, and when it should end. Times are seconds; None where nothing is known yet."""

    done: int
    total: int
    seconds_a_step: float | None
    eta_s: float | None
    spread_s: float | None

    @property
    def percent(self) -> int:
        return round(100 * self.done / self.total) if self.total else 0


@dataclass(frozen=True, kw_only=True)
class Made:
    """Numbers of versions: the first and the last that a run published, and the one of them that is live."""

    first: int
    last: int
    live: int | None


@dataclass(frozen=True, kw_only=True)
class RunView:
    """Everything on the page of a run."""

    run: Run
    tone: str
    progress: Progress
    curves: list[Curve]
    events: list[RunEvent]
    attempts: list[Attempt]
    batches: list[Batch]
    kept_back: set[int]  # training steps whose mean reward is hidden from this person
    unverified: Version | None
    made: Made | None

    @property
    def can_cancel(self) -> bool:
        return self.run.state in {RunState.QUEUED, RunState.RUNNING}

    @property
    def can_resume(self) -> bool:
        return self.run.state in {RunState.FAILED, RunState.CANCELLED}


def list_runs(project: Project, *, before: str | None) -> KeysetPage[Run]:
    """Return one page of runs, newest first."""
    rows = Run.objects.filter(project=project).select_related("launched_by", "start_version")
    return page_newest_first(rows, before=before, limit=PER_PAGE)


def find_run(project: Project, run_id: str) -> Run:
    """Return a run of the project or raise NotFound."""
    rows = Run.objects.select_related("policy", "start_version__policy", "launched_by", "project__team")
    run = rows.filter(project=project, pk=run_id).first() if is_id(run_id, "run") else None
    if run is None:
        raise NotFound("this project has no such run")
    return run


def find_active(project: Project) -> Run | None:
    """Return the run that is under way, which no second one may join."""
    return Run.objects.filter(project=project, state__in=ACTIVE_STATES).first()


def read_run(run: Run, *, hidden: Hidden = NOTHING) -> RunView:
    """Return everything that the page of a run shows."""
    attempts = list(run.attempts.order_by("-number")[:20])
    # Read after the attempts: a run that is claimed in between must not stand as queued beside its running attempt.
    run.refresh_from_db(fields=["state", "status_line", "error"])
    batches = list(run.batches.select_related("version").order_by("-step", "-pk")[:BATCHES_SHOWN])
    kept_back = find_hidden_steps(run, hidden=hidden)
    hide_means(batches, steps=kept_back)
    return RunView(
        run=run,
        tone=TONES[RunState(run.state)],
        progress=read_progress(run),
        curves=read_curves(run, kept_back=kept_back),
        events=list(run.events.order_by("-pk")[:EVENTS_SHOWN]),
        attempts=attempts,
        batches=batches,
        kept_back=kept_back,
        unverified=_find_unverified(run),
        made=_find_made(run),
    )


def _find_made(run: Run) -> Made | None:
    """Return the numbers of the versions that the run published, None while it has published none."""
    numbers = Version.objects.filter(policy=run.policy_id, lineage__run_id=run.pk).aggregate(
        Min("number"), Max("number")
    )
    if numbers["number__max"] is None:
        return None
    live = Alias.objects.filter(policy=run.policy_id, name=AliasName.LIVE, version__lineage__run_id=run.pk)
    return Made(
        first=numbers["number__min"],
        last=numbers["number__max"],
        live=live.values_list("version__number", flat=True).first(),
    )


def _find_unverified(run: Run) -> Version | None:
    """Return the newest version of the run that engines have not verified yet: a run ends before that."""
    made = Version.objects.filter(policy=run.policy_id, lineage__run_id=run.pk, state=VersionState.PUBLISHED)
    return made.order_by("-number").first()


def read_progress(run: Run) -> Progress:
    """Say how far a run is; the estimate comes from the gaps between its latest steps."""
    times = _recent_times(run)
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
    left = max(0, run.n_steps - run.steps_done)
    a_step = mean(gaps) if gaps else None
    is_moving = run.state == RunState.RUNNING and a_step is not None
    return Progress(
        done=run.steps_done,
        total=run.n_steps,
        seconds_a_step=a_step,
        eta_s=a_step * left if is_moving and a_step else None,
        spread_s=pstdev(gaps) * left**0.5 if is_moving and len(gaps) > 1 else None,
    )


def _recent_times(run: Run) -> list[datetime]:
    newest = run.metrics.order_by("-pk").values_list("attempt_id", "at")[: RECENT_STEPS + 1]
    rows = list(newest)
    return sorted(at for attempt_id, at in rows if attempt_id == rows[0][0])


def read_curves(run: Run, *, kept_back: Collection[int] = ()) -> list[Curve]:
    """Return the run's charts; a step that several attempts made counts with the latest of them. The mean rewards of
    the steps `kept_back` are not in them."""
    current: dict[int, dict[str, float]] = {}
    lost: dict[int, dict[str, float]] = {}
    for metric in Metric.objects.filter(run=run).order_by("attempt__number", "step").iterator():
        if metric.step in kept_back:
            metric.values.pop(MEAN, None)
        if metric.step in current:
            lost[metric.step] = current[metric.step]
        current[metric.step] = dict(metric.values)
    steps = _thin(sorted(current))
    return [curve for chart in CHARTS if (curve := _curve(chart, steps, current, lost)).last is not None]


def _curve(
    chart: tuple[str, str, str, str],
    steps: list[int],
    current: dict[int, dict[str, float]],
    lost: dict[int, dict[str, float]],
) -> Curve:
    name, title, unit, hint = chart
    return Curve(
        name=name,
        title=title,
        unit=unit,
        hint=hint,
        steps=steps,
        values=[current[step].get(name) for step in steps],
        lost=[lost.get(step, {}).get(name) for step in steps],
    )


def _thin(steps: Sequence[int]) -> list[int]:
    stride = max(1, -(-len(steps) // POINTS_SHOWN))
    kept = list(steps[::stride])
    return [*kept, steps[-1]] if steps and kept[-1] != steps[-1] else kept


def curve_data(curves: Sequence[Curve]) -> list[dict[str, object]]:
    """Return the curves as JSON for the charts."""
    return [
        {
            "name": curve.name,
            "title": curve.title,
            "steps": curve.steps,
            "values": curve.values,
            "lost": curve.lost if curve.has_lost else None,
            "from_zero": curve.name not in BELOW_ZERO,
        }
        for curve in curves
    ]


def find_batch(run: Run, step: int, *, hidden: Hidden = NOTHING) -> Batch:
    """Return the batch of a step: the one that counts, else the latest given back. Raises NotFound."""
    batches = list(run.batches.filter(step=step).order_by("pk"))
    if not batches:
        raise NotFound("this run has no such batch")
    hide_means(batches, steps=find_hidden_steps(run, hidden=hidden))
    standing = [batch for batch in batches if batch.state != BatchState.RELEASED]
    return (standing or batches)[-1]


def list_entries(batch: Batch, *, hidden: Hidden = NOTHING) -> list[BatchTrajectory]:
    """Return the trajectories of a batch, best reward first; those of `hidden` last."""
    rows = BatchTrajectory.objects.filter(batch=batch).select_related("trajectory__agent")
    entries = list(rows.order_by("-reward", "pk")[:ENTRIES_SHOWN])
    return sorted(entries, key=lambda entry: entry.trajectory_id in hidden)


def run_seconds(run: Run) -> float | None:
    """Return how long a run has taken so far."""
    if run.started_at is None:
        return None
    return ((run.ended_at or timezone.now()) - run.started_at).total_seconds()
