"""A reward model: a sequence-classification model in the ML environment, in a child process that lives for a batch.

The web side loads no torch: conversations go in as lines of JSON, scores come back as lines (`worker/reward_model`).
Models are folders that operators put into `<cache>/models`; pickled weights and code of models are never loaded.
"""

import json
import math
import subprocess
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

from django.conf import settings as django_settings
from pydantic import Field

from apps.core.errors import InvalidInput
from apps.feedback.graders.grades import Failure, Grade, NoGrade, Outcome
from apps.feedback.graders.settings import Targeted
from apps.feedback.graders.subjects import Subject

ROOT = Path(__file__).resolve().parents[3]
MODULE = "worker.reward_model"
LOAD_S, SCORE_S = 300.0, 20.0  # at most, of the model and of each conversation
SHOWN = 300
MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
MODEL_WORDS = (
    "a model's name is a folder's: letters, digits, ., - and _, a letter or digit first, 100 characters at most"
)


class RewardModelSettings(Targeted):
    """`tanh((score - centre) / spread)` is the part of the field's scale: a score of `centre` is its middle."""

    model: Annotated[str, Field(pattern=MODEL_NAME)]
    centre: float = 0.0
    spread: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    max_tokens: Annotated[int, Field(ge=16, le=131_072)] = 2048  # of a conversation; its beginning is left out


def find_model_dir(name: str) -> Path:
    """Return the model's folder. Raises InvalidInput when operators have put none of this name there."""
    folder: Path = django_settings.CLAW.cache_dir / "models" / name
    if not (folder / "config.json").is_file():
        raise InvalidInput(
            f"there is no reward model {name!r} on this worker (a folder in {folder.parent})", field="model"
        )
    return folder


def grade_by_model(
    settings: RewardModelSettings, subjects: Sequence[Subject], *, low: float, high: float
) -> list[Outcome]:
    """Have the model score all the subjects at once."""
    try:
        folder = find_model_dir(settings.model)
    except InvalidInput as error:
        return [Failure(why=error.message) for _ in subjects]
    lines = [json.dumps({"messages": [*subject.messages, subject.answer]}) for subject in subjects]
    try:
        said = _run_model(folder, lines, max_tokens=settings.max_tokens)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return [Failure(why=f"the reward model failed: {_tell(error)}") for _ in subjects]
    return [_read_score(line, settings, low=low, high=high) for line in said]


def _run_model(folder: Path, lines: Sequence[str], *, max_tokens: int) -> list[Any]:
    command = [str(django_settings.CLAW.ml_python), "-m", MODULE, "--model", str(folder)]
    answer = subprocess.run(
        [*command, "--max-tokens", str(max_tokens)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=LOAD_S + SCORE_S * len(lines),
        check=False,
    )
    if answer.returncode != 0:
        raise ValueError(read_last_words(answer.stderr) or f"it ended with {answer.returncode}")
    said = [json.loads(line) for line in answer.stdout.splitlines()]
    if len(said) != len(lines):
        raise ValueError(f"{len(lines)} scores were asked for and {len(said)} came")
    return said


def read_last_words(stderr: str) -> str:
    """Return what a program that failed said at last: the error below its traceback, from its beginning."""
    lines = stderr.strip().splitlines()
    last = list(takewhile(lambda line: not line.startswith(" "), reversed(lines)))[::-1] or lines[-1:]
    return " ".join(" ".join(last).split())[:SHOWN]


def _read_score(said: Any, settings: RewardModelSettings, *, low: float, high: float) -> Outcome:
    if error := said.get("error"):
        return NoGrade(why=str(error)[:SHOWN])
    score = float(said["score"])
    part = (math.tanh((score - settings.centre) / settings.spread) + 1) / 2
    return Grade(value=low + part * (high - low), text=f"{settings.model} scores {score:.4g}")


def _tell(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer in {error.timeout:g} s"
    return str(error)[:SHOWN]
