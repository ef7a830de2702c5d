"""Policies, versions, aliases and engines."""

import factory
from factory.django import DjangoModelFactory

from apps.registry.credentials import seal_credential
from apps.registry.models import (
    Alias,
    AliasName,
    Engine,
    EngineKind,
    EngineState,
    Policy,
    Teacher,
    Version,
    VersionKind,
    VersionState,
)
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
    adapter_path = ""
    kind = factory.LazyAttribute(lambda version: VersionKind.ADAPTER if version.adapter_path else VersionKind.BASE)
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


class ProviderFactory(DjangoModelFactory[Engine]):
    """A provider of one project, its credential `sk-of-a-teacher` unless told otherwise."""

    class Meta:
        model = Engine

    class Params:
        credential = "sk-of-a-teacher"

    kind = EngineKind.OPENAI
    project = factory.SubFactory(ProjectFactory)
    base_url = factory.Sequence(lambda n: f"http://127.0.0.1:{30000 + n}/v1")
    sealed_credential = factory.LazyAttribute(lambda engine: seal_credential(engine.credential))
    credential_last_four = factory.LazyAttribute(lambda engine: engine.credential[-4:])
    state = EngineState.UP


class TeacherFactory(DjangoModelFactory[Teacher]):
    class Meta:
        model = Teacher

    engine = factory.SubFactory(ProviderFactory)
    project = factory.SelfAttribute("engine.project")
    name = factory.Sequence(lambda n: f"teacher-{n}")
    model = "gpt-large"
