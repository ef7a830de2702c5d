"""What a run will take, against what its hosts have said they have: for the form, for REST and before a launch."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.utils import timezone

from apps.accounts.models import Project
from apps.core.errors import InvalidInput
from apps.registry.models import Policy
from apps.training.estimate import Estimate, Pace, Room, estimate_run, find_shortage
from apps.training.hosts import check_hosts
from apps.training.model_shape import read_model_shape
from apps.training.models import Attempt, Metric, TrainHost
from apps.training.recipes import RecipeConfig

N_POINTS = 20  # of the last steps, by which the pace is measured
N_ATTEMPTS = 10  # the last, by which a trainer's start is
MEASURED = ("tokens", "tokens_per_s", "trajectories")


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What is known before a launch. `problem`: why it cannot fit, or why nothing can be said."""

    estimate: Estimate | None
    room: Room
    device: str
    n_steps: int
    fits: bool | None
    problem: str = ""

    @property
    def seconds(self) -> float | None:
        """How long the whole run will take from its trainer's start, data being there."""
        if self.estimate is None or self.estimate.seconds_per_step is None:
            return None
        return (self.estimate.seconds_to_start or 0) + self.estimate.seconds_per_step * self.n_steps


def report_host(name: str, *, device: str, device_memory: int | None, memory: int) -> None:
    """Keep what a train worker's host says of itself; bytes, of one GPU and of the host."""
    facts = {"device": device, "device_memory": device_memory, "memory": memory, "reported_at": timezone.now()}
    TrainHost.objects.update_or_create(name=name, defaults=facts)


def look_ahead(project: Project, recipe: RecipeConfig) -> Outlook:
    """Return what the run would take and whether it fits, by the last report of a train worker."""
    policy = Policy.objects.filter(project=project).first()
    host = TrainHost.objects.order_by("-reported_at").first()
    room = Room(device=host.device_memory if host else None, host=host.memory if host else None, disk=_read_free_disk())
    device = host.device if host else "cpu"
    shape = read_model_shape(Path(policy.base_model_dir)) if policy else None
    if shape is None:
        words = "the base model's folder is not on this host, or says too little, so nothing can be estimated"
        return Outlook(estimate=None, room=room, device=device, n_steps=recipe.n_steps, fits=None, problem=words)
    estimate = estimate_run(shape, recipe, device=device, pace=_read_pace(project))
    shortage = _find_obstacle(recipe) or find_shortage(estimate, room, recipe)
    fits = False if shortage else (True if host else None)
    problem = shortage or ("" if host else "no train worker has said yet what its host has")
    return Outlook(estimate=estimate, room=room, device=device, n_steps=recipe.n_steps, fits=fits, problem=problem)


def check_fits(project: Project, recipe: RecipeConfig) -> None:
    """Raise InvalidInput, with what to change, when the run cannot fit; what is not known stops nobody."""
    outlook = look_ahead(project, recipe)
    if outlook.fits is False:
        raise InvalidInput(outlook.problem, field="recipe.max_tokens_per_microbatch")


def check_possible(recipe: RecipeConfig) -> None:
    """Raise InvalidInput when engines could not serve what comes of it, or no host is there that could train it."""
    _check_servable(recipe)
    check_hosts(settings.CLAW.train_hostfile, n_hosts=recipe.n_hosts, n_processes=recipe.n_processes)
    host = TrainHost.objects.order_by("-reported_at").first()
    if host is not None and host.device == "cpu":
        _refuse_what_needs_a_gpu(recipe)


def _find_obstacle(recipe: RecipeConfig) -> str:
    try:
        check_possible(recipe)
    except InvalidInput as error:
        return str(error)
    return ""


def _check_servable(recipe: RecipeConfig) -> None:
    largest = settings.CLAW.max_lora_rank
    if recipe.lora_rank is not None and recipe.lora_rank > largest:
        raise InvalidInput(
            f"recipe.lora_rank: the engines serve ranks up to {largest}; lower it, or raise CLAW_MAX_LORA_RANK and "
            "start the engines again",
            field="recipe.lora_rank",
        )


def _refuse_what_needs_a_gpu(recipe: RecipeConfig) -> None:
    if recipe.tuning == "qlora":
        raise InvalidInput("recipe.tuning: qlora needs an NVIDIA GPU; choose lora", field="recipe.tuning")
    if recipe.offload != "none":
        raise InvalidInput(
            "recipe.offload: without a GPU all is in the host's memory already; choose none", field="recipe.offload"
        )


def _read_free_disk() -> int | None:
    """Return the bytes that are free where runs are kept."""
    try:
        return shutil.disk_usage(settings.CLAW.data_dir).free
    except OSError:
        return None


def _read_pace(project: Project) -> Pace | None:
    """Return how fast the project's last steps were, and how long their trajectories."""
    points = Metric.objects.filter(run__project=project).order_by("-at")[:N_POINTS]
    rows = [row for row in points.values_list("values", flat=True) if all(map(row.get, MEASURED))]
    if not rows:
        return None
    return Pace(
        tokens_per_s=sum(row["tokens_per_s"] for row in rows) / len(rows),
        tokens_per_trajectory=sum(row["tokens"] for row in rows) / sum(row["trajectories"] for row in rows),
        seconds_to_start=_read_start(project),
    )


def _read_start(project: Project) -> float:
    """Return the shortest time that one of the project's last trainers took to begin: the others waited for data."""
    attempts = Attempt.objects.filter(run__project=project).order_by("-pk")[:N_ATTEMPTS]
    firsts = Metric.objects.filter(attempt__in=list(attempts)).order_by("attempt", "step").distinct("attempt")
    waits = [
        (first.at - first.attempt.started_at).total_seconds() - first.values.get("seconds", 0)
        for first in firsts.select_related("attempt")
    ]
    return max(0.0, min(waits, default=0.0))
