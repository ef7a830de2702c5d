"""The first start's contents: an admin, a team, a sample project with an agent and keys, its policy, the engines.

Every start runs it; what is there already stays as it is. Secrets exist in the clear only here, once: they are returned
for the banner and kept in `credentials.json` (mode 0600) in the data directory, where scripts on this host, such as the
demo, find them:

    base_url, email, password, project (slug), agent_key (scope agent), manage_key (scope manage)
"""

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import transaction

from apps.accounts.models import Project, Role, Scope, User
from apps.accounts.services import (
    FIRST_PASSWORD_BYTES,
    create_agent,
    create_key,
    create_project,
    create_team,
    create_user,
)
from apps.registry.services import ensure_policy, register_engine
from clawplatform.env import Env

ADMIN_EMAIL = "admin@claw.localhost"
SAMPLE_PROJECT = "sample"
ACTOR = "platform"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """What is there now. Secrets are empty unless this very call made them."""

    email: str
    password: str
    project: str
    agent_key: str
    manage_key: str


def credentials_path(env: Env) -> Path:
    """Return where the secrets of the first start are kept."""
    return env.data_dir / "credentials.json"


@transaction.atomic
def seed_platform(env: Env, *, engine_urls: tuple[str, ...]) -> Seeded:
    """Make what is missing. The file is written before the commit: a secret whose row exists is never lost."""
    admin, password = _ensure_admin()
    project = Project.objects.filter(slug=SAMPLE_PROJECT).first()
    agent_key = manage_key = ""
    if project is None:
        project, agent_key, manage_key = _create_sample(admin)
    ensure_policy(
        project=project,
        slug=SAMPLE_PROJECT,
        base_model=env.model_dir.name,
        base_model_dir=str(env.model_dir),
    )
    for url in engine_urls:
        register_engine(base_url=url)
    seeded = Seeded(
        email=admin.email, password=password, project=project.slug, agent_key=agent_key, manage_key=manage_key
    )
    _keep_credentials(env, seeded)
    return seeded


@transaction.atomic
def create_project_with_keys(env: Env, *, name: str, agent_names: tuple[str, ...]) -> dict[str, Any]:
    """Make a project of the admin's team, its policy at the base model, and agents with a key each.

    Returns `project` (slug), its `url` and `team`, `manage_key` (scope manage, of the first agent) and `agent_keys`
    (agent's slug → secret).
    """
    admin, _ = _ensure_admin()
    membership = admin.memberships.filter(role=Role.OWNER).order_by("created_at").first()
    team = membership.team if membership else create_team(name="Home", owner=admin)
    project = create_project(team=team, name=name, actor=ACTOR)
    ensure_policy(project=project, slug=project.slug, base_model=env.model_dir.name, base_model_dir=str(env.model_dir))
    agents = [create_agent(project=project, name=agent_name, actor=ACTOR) for agent_name in agent_names]
    keys = {agent.slug: create_key(agent=agent, actor=ACTOR, created_by=admin)[1] for agent in agents}
    _, manage_key = create_key(agent=agents[0], actor=ACTOR, created_by=admin, scope=Scope.MANAGE)
    return {
        "project": project.slug,
        "team": team.name,
        "url": f"{env.public_base_url}/p/{project.slug}/",
        "manage_key": manage_key,
        "agent_keys": keys,
    }


def _ensure_admin() -> tuple[User, str]:
    admin = User.objects.filter(is_superuser=True).order_by("date_joined").first()
    if admin is not None:
        return admin, ""
    password = secrets.token_urlsafe(FIRST_PASSWORD_BYTES)
    return create_user(email=ADMIN_EMAIL, password=password, name="Admin", is_staff=True), password


def _create_sample(admin: User) -> tuple[Project, str, str]:
    team = create_team(name="Home", owner=admin)
    project = create_project(team=team, name="Sample", slug=SAMPLE_PROJECT, actor=ACTOR)
    agent = create_agent(project=project, name="First agent", actor=ACTOR)
    _, agent_key = create_key(agent=agent, name="First key", actor=ACTOR, created_by=admin)
    _, manage_key = create_key(
        agent=agent, name="Scripts on this host", actor=ACTOR, created_by=admin, scope=Scope.MANAGE
    )
    return project, agent_key, manage_key


def _keep_credentials(env: Env, seeded: Seeded) -> None:
    path = credentials_path(env)
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    fresh = {
        "email": seeded.email,
        "password": seeded.password,
        "project": seeded.project,
        "agent_key": seeded.agent_key,
        "manage_key": seeded.manage_key,
    }
    kept |= {name: value for name, value in fresh.items() if value or name not in kept}
    kept["base_url"] = env.public_base_url
    env.data_dir.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(kept, indent=2) + "\n")
    draft.replace(path)
