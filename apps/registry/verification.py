"""Does an engine compute what the trainer computed? Pure: numbers in, a verdict out."""

from collections.abc import Sequence
from dataclasses import dataclass

from apps.core.errors import ServiceError


class VerificationFailed(ServiceError):
    """The engine serves other weights than the trainer wrote, or serves them wrongly."""

    code = "verification_failed"


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far apart (nats per token) trainer and engine may be."""

    mean: float
    max: float


# Measured for 135 M parameters: float32 mean 5e-6, max 3e-5; bfloat16 mean 0.045, max 0.5 (single tokens to 1.3).
# A wrong adapter is off by far more on average, so the mean decides and the maximum only catches the absurd.
TOLERANCES = {
    "float32": Tolerance(mean=1e-3, max=2e-2),
    "bfloat16": Tolerance(mean=0.15, max=2.0),
}


N_POSITIONS = 24


@dataclass(frozen=True, kw_only=True)
class Report:
    """One engine's answer to the probe beside the trainer's."""

    engine_id: str
    mean_abs_diff: float
    max_abs_diff: float
    n_tokens: int
    canary: str = ""


def choose_positions(logprobs: Sequence[float]) -> list[int]:
    """Return up to N_POSITIONS positions where the trainer was least sure, in order: there other weights show most."""
    return sorted(sorted(range(len(logprobs)), key=lambda position: logprobs[position])[:N_POSITIONS])


def compare_logprobs(
    expected: Sequence[float], found: Sequence[float], *, tolerance: Tolerance, engine_id: str
) -> Report:
    """Return the report; raises VerificationFailed when the two (equally long) lists are further apart than allowed."""
    if len(expected) != len(found) or not expected:
        raise VerificationFailed(f"the trainer gave {len(expected)} log-probs for the probe, the engine {len(found)}")
    gaps = [abs(one - other) for one, other in zip(expected, found, strict=True)]
    mean, largest = sum(gaps) / len(gaps), max(gaps)
    if not (mean <= tolerance.mean and largest <= tolerance.max):
        raise VerificationFailed(
            f"the engine's log-probs differ from the trainer's by {mean:.2g} nats a token on average (at most "
            f"{tolerance.mean:g} allowed) and by up to {largest:.2g} ({tolerance.max:g} allowed): it does not serve "
            "the weights that were trained"
        )
    return Report(engine_id=engine_id, mean_abs_diff=mean, max_abs_diff=largest, n_tokens=len(gaps))
