"""Fixtures of all tests: one team (owner, mate, viewer), one stranger with a team of their own, keys and clients."""

from collections.abc import Callable, Iterator

import pytest
from django.test import Client, TransactionTestCase
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from pytest_django.fixtures import Settings
from pytest_django.plugin import DjangoDbBlocker
from rest_framework.test import APIClient

from apps.accounts.models import Agent, ApiKey, Project, Role, Scope, Team, User
from tests.database import empty_tables, end_other_connections
from tests.factories.accounts import (
    AgentFactory,
    ApiKeyFactory,
    MembershipFactory,
    ProjectFactory,
    TeamFactory,
    UserFactory,
)

# Many things share the machine: an example that takes long is no fault of the code's.
hypothesis_settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("suite")

SECRET = "claw-test-of-the-agent"
MANAGE_SECRET = "claw-test-of-the-manager"
OTHER_SECRET = "claw-test-of-the-other-team"


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Have the database emptied quickly between tests, and dropped whoever still holds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda _case: empty_tables())
        yield
    with django_db_blocker.unblock():
        end_other_connections()


@pytest.fixture(autouse=True)
def quick_passwords(settings: Settings) -> None:
    """Hash passwords fast: a slow hash for each person would be most of the tests' time."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def team(db: None) -> Team:
    return TeamFactory.create(name="Otters")


@pytest.fixture
def owner(team: Team) -> User:
    """Owns the team."""
    return MembershipFactory.create(team=team, role=Role.OWNER, user__email="owner@example.org").user


@pytest.fixture
def trainer(team: Team) -> User:
    """May launch runs."""
    return MembershipFactory.create(team=team, role=Role.TRAINER, user__email="trainer@example.org").user


@pytest.fixture
def mate(team: Team) -> User:
    """A reviewer of the same team."""
    return MembershipFactory.create(team=team, role=Role.REVIEWER, user__email="mate@example.org").user


@pytest.fixture
def viewer(team: Team) -> User:
    """May only look."""
    return MembershipFactory.create(team=team, role=Role.VIEWER, user__email="viewer@example.org").user


@pytest.fixture
def project(team: Team) -> Project:
    return ProjectFactory.create(team=team, name="Shop", slug="shop")


@pytest.fixture
def agent(project: Project) -> Agent:
    return AgentFactory.create(project=project, name="Clerk", slug="clerk")


@pytest.fixture
def secret() -> str:
    """What `key`'s holder sends."""
    return SECRET


@pytest.fixture
def key(agent: Agent, secret: str) -> ApiKey:
    return ApiKeyFactory.create(agent=agent, secret=secret)


@pytest.fixture
def manage_key(agent: Agent) -> ApiKey:
    return ApiKeyFactory.create(agent=agent, secret=MANAGE_SECRET, scope=Scope.MANAGE)


@pytest.fixture
def other_project(db: None) -> Project:
    """A project of another team."""
    return ProjectFactory.create(name="Elsewhere", slug="elsewhere")


@pytest.fixture
def stranger(other_project: Project) -> User:
    """Owns another team."""
    user = UserFactory.create(email="stranger@example.org")
    MembershipFactory.create(team=other_project.team, user=user)
    return user


@pytest.fixture
def other_key(other_project: Project) -> ApiKey:
    return ApiKeyFactory.create(agent__project=other_project, secret=OTHER_SECRET)


@pytest.fixture
def anonymous_client() -> APIClient:
    return APIClient()


@pytest.fixture
def key_client(key: ApiKey, secret: str) -> APIClient:
    """Calls the REST API with the agent's key."""
    return client_with_secret(secret)


@pytest.fixture
def manage_client(manage_key: ApiKey) -> APIClient:
    return client_with_secret(MANAGE_SECRET)


@pytest.fixture
def other_client(other_key: ApiKey) -> APIClient:
    """Calls with a key of another team."""
    return client_with_secret(OTHER_SECRET)


@pytest.fixture
def client_of() -> Callable[[User], APIClient]:
    """Return a client that is logged in as a person."""

    def log_in(user: User) -> APIClient:
        client = APIClient()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def browser_of() -> Callable[[User], Client]:
    """Return a plain Django client that is logged in, for pages."""

    def log_in(user: User) -> Client:
        client = Client()
        client.force_login(user)
        return client

    return log_in


def client_with_secret(secret: str) -> APIClient:
    """Return a client that sends this secret."""
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client
