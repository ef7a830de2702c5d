"""Where an object lives, by its id alone. Another team's id and a missing one look the same."""

from collections.abc import Callable
from typing import Any

from django.urls import reverse

from apps.accounts.access import Caller
from apps.accounts.models import Agent, ApiKey, Project
from apps.core.errors import NotFound
from apps.feedback.graders.models import Grader
from apps.feedback.models import Label
from apps.registry.models import Policy, Version
from apps.training.models import Run
from apps.trajectories.datasets.models import Dataset, Export, Import, Snapshot
from apps.trajectories.models import Step, Trajectory

Found = tuple[Project, str]


def find_address(caller: Caller, object_id: str) -> str:
    """Return the address of the page that shows `object_id`. Raises NotFound."""
    prefix = "resp" if object_id.startswith("chatcmpl-") else object_id.split("_", 1)[0]
    find = FINDERS.get(prefix)
    found = find(object_id) if find else None
    if found is None or caller.role_in(found[0]) is None:
        raise NotFound(f"nothing that you may see has the id {object_id}")
    return found[1]


def _project(object_id: str) -> Found | None:
    project = Project.objects.filter(pk=object_id).first()
    return (project, reverse("project_home", args=[project.slug])) if project else None


def _agent(object_id: str) -> Found | None:
    agent = Agent.objects.select_related("project").filter(pk=object_id).first()
    return (agent.project, reverse("agent", args=[agent.project.slug, agent.slug])) if agent else None


def _key(object_id: str) -> Found | None:
    key = ApiKey.objects.filter(pk=object_id).first()
    return _agent(key.agent_id) if key else None


def _grader(object_id: str) -> Found | None:
    grader = Grader.objects.select_related("project").filter(pk=object_id).first()
    return (grader.project, reverse("grader", args=[grader.project.slug, grader.pk])) if grader else None


def _trajectory(object_id: str) -> Found | None:
    trajectory = Trajectory.objects.select_related("project").filter(pk=object_id, deleted_at=None).first()
    if trajectory is None:
        return None
    return trajectory.project, reverse("trajectory", args=[trajectory.project.slug, trajectory.id])


def _step_of(**named: Any) -> Found | None:
    rows = Step.objects.select_related("trajectory__project").filter(trajectory__deleted_at=None)
    step = rows.filter(**named).first()
    if step is None:
        return None
    project = step.trajectory.project
    address = reverse("trajectory", args=[project.slug, step.trajectory_id])
    return project, f"{address}?step={step.index}#step-{step.index}"


def _step(object_id: str) -> Found | None:
    return _step_of(pk=object_id)


def _exchange(object_id: str) -> Found | None:
    return _step_of(exchange_id=object_id)


def _response(object_id: str) -> Found | None:
    return _step_of(response_id=object_id)


def _label(object_id: str) -> Found | None:
    label = Label.objects.filter(pk=object_id).first()
    return _trajectory(label.trajectory_id) if label else None


def _run(object_id: str) -> Found | None:
    run = Run.objects.select_related("project").filter(pk=object_id).first()
    return (run.project, reverse("run", args=[run.project.slug, run.id])) if run else None


def _policy(object_id: str) -> Found | None:
    policy = Policy.objects.select_related("project").filter(pk=object_id).first()
    return (policy.project, reverse("models", args=[policy.project.slug])) if policy else None


def _version(object_id: str) -> Found | None:
    version = Version.objects.select_related("policy__project").filter(pk=object_id).first()
    if version is None:
        return None
    project = version.policy.project
    return project, f"{reverse('models', args=[project.slug])}#v{version.number}"


def _dataset(object_id: str) -> Found | None:
    dataset = Dataset.objects.select_related("project").filter(pk=object_id).first()
    return (dataset.project, reverse("dataset", args=[dataset.project.slug, dataset.id])) if dataset else None


def _snapshot(object_id: str) -> Found | None:
    snapshot = Snapshot.objects.select_related("dataset__project").filter(pk=object_id).first()
    if snapshot is None:
        return None
    project = snapshot.dataset.project
    return project, reverse("snapshot", args=[project.slug, snapshot.id])


def _export(object_id: str) -> Found | None:
    export = Export.objects.select_related("project").filter(pk=object_id).first()
    return (export.project, f"{reverse('exports', args=[export.project.slug])}#{export.id}") if export else None


def _import(object_id: str) -> Found | None:
    source = Import.objects.select_related("project").filter(pk=object_id).first()
    return (source.project, reverse("import", args=[source.project.slug, source.id])) if source else None


FINDERS: dict[str, Callable[[str], Found | None]] = {
    "proj": _project,
    "agnt": _agent,
    "key": _key,
    "traj": _trajectory,
    "step": _step,
    "exch": _exchange,
    "resp": _response,
    "labl": _label,
    "grdr": _grader,
    "dset": _dataset,
    "snap": _snapshot,
    "expt": _export,
    "impt": _import,
    "run": _run,
    "plcy": _policy,
    "ver": _version,
}
