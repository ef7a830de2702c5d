"""The first start's contents, and that later starts change nothing."""

import json
import stat
from pathlib import Path

import pytest

from apps.accounts.models import Agent, ApiKey, Project, Role, Scope, User, hash_key
from apps.accounts.services import create_user
from apps.core.errors import Conflict
from apps.registry.models import AliasName, Engine, Policy
from clawplatform.env import Env
from clawplatform.seeding import ADMIN_EMAIL, credentials_path, seed_platform

pytestmark = pytest.mark.django_db
ENGINE = "http://127.0.0.1:8100"


@pytest.fixture
def env(tmp_path: Path) -> Env:
    return Env(CLAW_DATA_DIR=tmp_path, CLAW_MODEL=tmp_path / "models" / "small", CLAW_PORT=8123)


def test_the_first_start_makes_a_place_to_work_in(env: Env) -> None:
    seeded = seed_platform(env, engine_urls=(ENGINE,))
    admin = User.objects.get()
    project = Project.objects.get()
    assert admin.email == ADMIN_EMAIL
    assert admin.check_password(seeded.password)
    assert admin.role_in(project) == Role.OWNER
    policy = Policy.objects.get()
    assert (policy.base_model, policy.base_model_dir) == ("small", str(env.model_dir))
    assert policy.aliases.get(name=AliasName.LIVE).version.number == 0
    assert Engine.objects.get().base_url == ENGINE


def test_its_keys_work_each_in_its_scope(env: Env) -> None:
    seeded = seed_platform(env, engine_urls=())
    scopes = {key.scope: key for key in ApiKey.objects.usable()}
    assert scopes[Scope.AGENT].sha256 == hash_key(seeded.agent_key)
    assert scopes[Scope.MANAGE].sha256 == hash_key(seeded.manage_key)


def test_the_secrets_are_kept_for_this_user_only(env: Env) -> None:
    seeded = seed_platform(env, engine_urls=())
    path = credentials_path(env)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {
        "base_url": "http://127.0.0.1:8123",
        "email": ADMIN_EMAIL,
        "password": seeded.password,
        "project": "sample",
        "agent_key": seeded.agent_key,
        "manage_key": seeded.manage_key,
    }


def test_a_second_start_makes_nothing_shows_nothing_and_keeps_the_file(env: Env) -> None:
    first = seed_platform(env, engine_urls=(ENGINE,))
    again = seed_platform(env, engine_urls=(ENGINE,))
    assert (again.password, again.agent_key, again.manage_key) == ("", "", "")
    assert (User.objects.count(), Project.objects.count(), Agent.objects.count(), ApiKey.objects.count()) == (
        1,
        1,
        1,
        2,
    )
    assert json.loads(credentials_path(env).read_text())["agent_key"] == first.agent_key


def test_a_new_address_is_written_down(env: Env, tmp_path: Path) -> None:
    seed_platform(env, engine_urls=())
    seed_platform(env.model_copy(update={"port": 9000}), engine_urls=())
    assert json.loads(credentials_path(env).read_text())["base_url"] == "http://127.0.0.1:9000"


def test_an_admin_made_by_hand_stays_the_only_one(env: Env) -> None:
    create_user(email="me@example.org", password="long enough", is_staff=True)
    seeded = seed_platform(env, engine_urls=())
    assert (seeded.email, seeded.password) == ("me@example.org", "")
    assert User.objects.count() == 1


def test_another_base_model_is_refused_and_nothing_is_half_made(env: Env, tmp_path: Path) -> None:
    seed_platform(env, engine_urls=())
    other = env.model_copy(update={"model": tmp_path / "models" / "other"})
    with pytest.raises(Conflict, match="stands on small, not on other"):
        seed_platform(other, engine_urls=(ENGINE,))
    assert not Engine.objects.exists()
