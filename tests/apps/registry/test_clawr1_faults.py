"""The reference system's fault 8 in serving: weights changing under traffic. docs/agents/claw-r1.md has the table."""

import pytest
from django.db import IntegrityError, transaction

from apps.registry.models import AliasName, Engine, Policy, Version, VersionState
from apps.registry.refresh import refresh_version
from tests.apps.registry.conftest import Publish, number_of
from tests.factories.registry import VersionFactory
from tests.fakes.adapter_engine import FakeEngine


def test_fault_08_no_name_of_weights_is_ever_used_again(policy: Policy, publish: Publish) -> None:
    """Engines key their prefix cache on the name: what was cached of old weights can never answer for new ones."""
    names = [publish().engine_name for _ in range(3)]
    assert len(set(names)) == 3
    with pytest.raises(IntegrityError, match="adapter_name_is_never_reused"), transaction.atomic():
        VersionFactory.create(policy=policy, number=9, engine_name=names[0], adapter_path="elsewhere")


def test_fault_08_traffic_moves_only_to_weights_that_are_whole_and_verified(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, publish: Publish
) -> None:
    fake_engine.offset = 0.01  # half-written weights speak otherwise than the trainer's
    half = publish()
    refresh_version(half)
    assert number_of(policy, AliasName.LIVE) == 0
    assert Version.objects.get(pk=half.pk).state == VersionState.FAILED
    fake_engine.offset = 0.0
    refresh_version(whole := publish())
    assert number_of(policy, AliasName.LIVE) == whole.number


def test_fault_08_the_old_weights_stay_while_calls_may_be_in_flight(
    engine: Engine, fake_engine: FakeEngine, publish: Publish
) -> None:
    for _ in range(2):
        refresh_version(publish())
    assert len(fake_engine.adapters) == 2  # the one before still answers what it has begun
