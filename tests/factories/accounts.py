"""People, teams, projects, agents and keys."""

from typing import Any

import factory
from factory.django import DjangoModelFactory

from apps.accounts.models import Agent, ApiKey, Membership, Project, Role, Scope, Team, User, hash_key

PASSWORD = "correct horse battery"


class UserFactory(DjangoModelFactory[User]):
    class Meta:
        model = User

    email = factory.Sequence(lambda n: f"person{n}@example.org")
    name = factory.Sequence(lambda n: f"Person {n}")

    @classmethod
    def _create(cls, model_class: type[User], *_args: Any, **kwargs: Any) -> User:
        return model_class.objects.create_user(password=kwargs.pop("password", PASSWORD), **kwargs)


class TeamFactory(DjangoModelFactory[Team]):
    class Meta:
        model = Team

    name = factory.Sequence(lambda n: f"Team {n}")


class MembershipFactory(DjangoModelFactory[Membership]):
    class Meta:
        model = Membership

    user = factory.SubFactory(UserFactory)
    team = factory.SubFactory(TeamFactory)
    role = Role.OWNER


class ProjectFactory(DjangoModelFactory[Project]):
    class Meta:
        model = Project

    team = factory.SubFactory(TeamFactory)
    name = factory.Sequence(lambda n: f"Project {n}")
    slug = factory.Sequence(lambda n: f"project-{n}")


class AgentFactory(DjangoModelFactory[Agent]):
    class Meta:
        model = Agent

    project = factory.SubFactory(ProjectFactory)
    name = factory.Sequence(lambda n: f"Agent {n}")
    slug = factory.Sequence(lambda n: f"agent-{n}")


class ApiKeyFactory(DjangoModelFactory[ApiKey]):
    """`ApiKeyFactory(secret=…)` makes a key whose secret the test knows."""

    class Meta:
        model = ApiKey

    class Params:
        secret = factory.LazyFunction(ApiKey.make_secret)

    agent = factory.SubFactory(AgentFactory)
    scope = Scope.AGENT
    prefix = factory.LazyAttribute(lambda key: key.secret[:9])
    last_four = factory.LazyAttribute(lambda key: key.secret[-4:])
    sha256 = factory.LazyAttribute(lambda key: hash_key(key.secret))
