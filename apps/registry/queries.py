"""What is read of policies, versions and engines, and by whom."""

import re
from collections.abc import Collection
from datetime import datetime

from django.db.models import Min

from apps.accounts.access import Caller
from apps.accounts.models import Project
from apps.core.errors import NotFound
from apps.core.ids import is_id
from apps.core.paging import Page, page_newest_first
from apps.registry.models import Deployment, DeploymentState, Engine, EngineState, Policy, Teacher, Version


def find_policy(project: Project) -> Policy:
    """Return the project's policy. Raises NotFound."""
    policy = Policy.objects.select_related("project__team").filter(project=project).first()
    if policy is None:
        raise NotFound("this project has no policy yet")
    return policy


def find_context_length(base_model: str = "") -> int | None:
    """Return the tokens that every engine up (of that base model) has for request and answer; None where none tells."""
    up = Engine.objects.replicas().filter(is_enabled=True, state=EngineState.UP)
    rows = up.filter(base_model=base_model) if base_model else up
    shortest: int | None = rows.aggregate(shortest=Min("max_model_len"))["shortest"]
    return shortest


def list_removable_files(*, before: datetime) -> list[Version]:
    """Return the versions whose files were given up before that time and that no engine has, or is taking, since."""
    moving = Engine.objects.replicas().filter(moving_since__isnull=False).values("base_model")
    given_up = Version.objects.idle().filter(given_up_at__lt=before)
    return list(given_up.exclude(policy__base_model__in=moving).order_by("pk"))


def find_version(version_id: str, *, caller: Caller) -> Version:
    """Return a version that the caller may see. Raises NotFound: another team's looks like a missing one."""
    rows = Version.objects.select_related("policy__project__team").prefetch_related("aliases")
    version = rows.filter(pk=version_id).first() if is_id(version_id, "ver") else None
    if version is None or caller.role_in(version.policy.project) is None:
        raise NotFound("no such version")
    return version


def find_named_versions(policy: Policy, names: Collection[str]) -> dict[str, Version]:
    """Return the policy's versions by the names that people and clients use: an id, `v3`, `slug@v3` or `3`."""
    label = re.compile(rf"(?:(?:{re.escape(policy.slug)}@)?v)?(\d{{1,9}})", re.ASCII)
    numbers = {name: int(found.group(1)) for name in names if (found := label.fullmatch(name))}
    ids = {name for name in names if is_id(name, "ver")}
    rows = list(Version.objects.filter(policy=policy, number__in=set(numbers.values())))
    rows += Version.objects.filter(policy=policy, pk__in=ids)
    by_number, by_id = {row.number: row for row in rows}, {row.pk: row for row in rows}
    found_by = {**{name: by_id.get(name) for name in ids}, **{name: by_number.get(n) for name, n in numbers.items()}}
    return {name: version for name, version in found_by.items() if version is not None}


def list_versions(policy: Policy, *, before: str | None, limit: int) -> Page[Version]:
    """Return one page of the policy's versions, newest first."""
    rows = Version.objects.filter(policy=policy).prefetch_related("aliases")
    return page_newest_first(rows, before=before, limit=limit)


def list_engines(project: Project) -> tuple[list[Engine], dict[str, list[str]]]:
    """Return the engines of the policy's base model and the project's own providers, and by engine the ids of the
    policy's versions loaded there.
    """
    policies = Policy.objects.filter(project=project)
    replicas = Engine.objects.replicas().filter(base_model__in=policies.values("base_model"))
    engines = [*replicas.order_by("id"), *Engine.objects.providers().filter(project=project).order_by("id")]
    rows = Deployment.objects.filter(engine__in=engines, version__policy__in=policies, state=DeploymentState.LOADED)
    loaded: dict[str, list[str]] = {}
    for engine_id, version_id in rows.order_by("version__number").values_list("engine_id", "version_id"):
        loaded.setdefault(engine_id, []).append(version_id)
    return engines, loaded


def list_providers(project: Project) -> list[Engine]:
    """Return the project's own providers, the oldest first, each with its teachers."""
    return list(Engine.objects.providers().filter(project=project).prefetch_related("teachers").order_by("id"))


def list_teachers(project: Project) -> list[Teacher]:
    """Return the project's teachers by name."""
    return list(Teacher.objects.filter(project=project).select_related("engine").order_by("name"))
