"""What the demo prints: the run's status as it changes, the tables, what to do next, the last line. Pure."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One round of training tasks and the version it led to."""

    number: int
    spoken_by: str
    reward: float
    share_perfect: float
    metrics: dict[str, float]
    seconds: float


class StatusLines:
    """What a run says of itself, without what it said before."""

    def __init__(self) -> None:
        self._last = ""

    def tell(self, status: str) -> str:
        """Return what is new in the run's status line, "" when nothing is."""
        if status == self._last:
            return ""
        self._last = status
        return status


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The figures of the last line.

    `mean_logprob_diff` and `max_logprob_diff`: trainer against engine on the published versions' probes, in nats, the
    worst version's.
    """

    steps: int
    trajectories: int
    reward_before: float
    reward_after: float
    perfect_before: float
    perfect_after: float
    versions: int
    failed_requests: int
    lost_steps: int
    mean_logprob_diff: float
    max_logprob_diff: float
    companion_calls: int
    companion_versions: int
    seconds: float

    @property
    def faults(self) -> list[str]:
        """Why the demo failed, in words; empty when it did not."""
        found = []
        if self.reward_after <= self.reward_before:
            found.append(f"held-out reward did not rise: {self.reward_before} → {self.reward_after}")
        if self.failed_requests:
            found.append(f"{self.failed_requests} requests failed")
        if self.lost_steps:
            found.append(f"{self.lost_steps} answers are not in the pool")
        return found


def render_table(iterations: Sequence[Iteration]) -> str:
    """Return the rounds as a table."""
    head = (
        f"{'round':>5}  {'spoken by':<10} {'reward':>6} {'perfect':>7}"
        f" {'loss':>8} {'KL':>7} {'ESS':>5} {'clip':>5} {'s':>5}"
    )
    rows = [
        f"{row.number:>5}  {row.spoken_by:<10} {row.reward:>6.2f} {row.share_perfect:>7.2f}"
        f" {row.metrics.get('loss', 0.0):>8.4f} {row.metrics.get('kl', 0.0):>7.4f} {row.metrics.get('ess', 0.0):>5.2f}"
        f" {row.metrics.get('clip_fraction', 0.0):>5.2f} {row.seconds:>5.0f}"
        for row in iterations
    ]
    return "\n".join([head, "-" * len(head), *rows])


def render_comparison(outcome: Outcome, *, n_held_out: int) -> str:
    """Return before and after on the held-out tasks as a table."""
    rows = (
        ("reward", outcome.reward_before, outcome.reward_after),
        ("without a fault", outcome.perfect_before, outcome.perfect_after),
    )
    lines = [f"{f'{n_held_out} held-out tasks':<22} {'before':>7} {'after':>7}", "-" * 38]
    return "\n".join(lines + [f"{name:<22} {before:>7.2f} {after:>7.2f}" for name, before, after in rows])


def render_next(project_url: str, *, base_url: str, stays: bool) -> str:
    """Return what to do once the loop has closed."""
    if stays:
        return f"Look at it: {project_url} (its run, versions and trajectories). `make stop` ends the platform."
    return (
        f"Everything is kept. To look at it: `make run`, then {project_url}\n"
        f"(the console's log-in is printed there); to point an agent of your own at {base_url}/v1, read README.md."
    )


def render_last_line(outcome: Outcome) -> str:
    """Return `DEMO {json}`: four significant digits, so that a tiny difference is not told as none."""
    figures = {
        name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in asdict(outcome).items()
    }
    return f"DEMO {json.dumps(figures)}"
