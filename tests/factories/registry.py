"""Policies, versions, aliases and engines."""

import factory
from factory.django import DjangoModelFactory

from apps.registry.models import Alias, AliasName, Engine, EngineState, Policy, Version, VersionState
from tests.factories.accounts import ProjectFactory


class PolicyFactory(DjangoModelFactory[Policy]):
    class Meta:
        model = Policy

    project = factory.SubFactory(ProjectFactory)
    slug = factory.Sequence(lambda n: f"policy-{n}")
    base_model = "tiny"
    base_model_dir = "models/tiny"


class VersionFactory(DjangoModelFactory[Version]):
    """Number 0 (the default) is the base; `VersionFactory(number=1, adapter_path=…)` is an adapter."""

    class Meta:
        model = Version

    policy = factory.SubFactory(PolicyFactory)
    number = 0
    engine_name = factory.LazyAttribute(
        lambda version: f"{version.policy.slug}-v{version.number}" if version.number else version.policy.base_model
    )
    state = VersionState.READY


class AliasFactory(DjangoModelFactory[Alias]):
    class Meta:
        model = Alias

    policy = factory.SelfAttribute("version.policy")
    version = factory.SubFactory(VersionFactory)
    name = AliasName.LIVE


class EngineFactory(DjangoModelFactory[Engine]):
    class Meta:
        model = Engine

    base_url = factory.Sequence(lambda n: f"http://127.0.0.1:{20000 + n}")
    base_model = "tiny"
    state = EngineState.UP
