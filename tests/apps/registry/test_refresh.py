"""From published to live: load, verify, switch, or say why not."""

from pathlib import Path

import pytest

from apps.core.contracts.training import Probe
from apps.core.errors import Conflict
from apps.registry.models import AliasName, Deployment, DeploymentState, Engine, Policy, Version, VersionState
from apps.registry.reconcile import reconcile_engines
from apps.registry.refresh import move_alias, refresh_version
from apps.registry.services import mark_ready, register_engine
from apps.registry.verification import choose_positions
from tests.apps.registry.conftest import TOKENS, Publish, number_of
from tests.fakes.adapter_engine import FakeEngine, serve_engine

LIVE, PREVIOUS = AliasName.LIVE, AliasName.PREVIOUS


def reread(version: Version) -> Version:
    return Version.objects.get(pk=version.pk)


def test_a_good_version_is_loaded_verified_and_live(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, publish: Publish
) -> None:
    version = publish()
    refresh_version(version)
    version = reread(version)
    assert version.state == VersionState.READY
    assert fake_engine.adapters == {version.engine_name: version.adapter_path}
    assert (number_of(policy, LIVE), number_of(policy, PREVIOUS)) == (1, 0)
    assert version.verification["max_abs_diff"] < 1e-6
    assert version.verification["engines"][0]["canary"] == "hello"
    assert Deployment.objects.get(version=version, engine=engine).state == DeploymentState.LOADED


def test_refreshing_twice_loads_once(engine: Engine, fake_engine: FakeEngine, publish: Publish) -> None:
    version = publish()
    refresh_version(version)
    refresh_version(version)  # a stale row, as a second message would have it
    assert [path for path, _ in fake_engine.calls].count("/v1/load_lora_adapter") == 1
    assert reread(version).state == VersionState.READY


def test_wrong_weights_fail_in_words_and_leave_the_alias(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, publish: Publish
) -> None:
    fake_engine.offset = 0.01
    version = publish()
    refresh_version(version)
    version = reread(version)
    assert version.state == VersionState.FAILED
    assert "differ from the trainer's by 0.01 nats" in version.error
    assert number_of(policy, LIVE) == 0
    assert fake_engine.adapters == {}


def test_a_changed_file_fails_before_any_engine_sees_it(
    engine: Engine, fake_engine: FakeEngine, publish: Publish
) -> None:
    version = publish()
    (Path(version.adapter_path) / "adapter_model.safetensors").write_bytes(b"tampered")
    refresh_version(version)
    assert "checksum differs" in reread(version).error
    assert not fake_engine.adapters


def test_missing_files_fail_in_words(engine: Engine, publish: Publish) -> None:
    version = publish()
    Version.objects.filter(pk=version.pk).update(adapter_path="/nowhere/at/all")
    refresh_version(reread(version))
    assert "cannot be read" in reread(version).error


def test_an_engines_refusal_fails_the_version_in_its_words(
    engine: Engine, fake_engine: FakeEngine, publish: Publish
) -> None:
    fake_engine.refuses = "LoRA rank 64 is greater than max_lora_rank"
    version = publish()
    refresh_version(version)
    assert "greater than max_lora_rank" in reread(version).error
    assert Deployment.objects.get(version=version).state == DeploymentState.FAILED


def test_the_probe_asks_where_the_trainer_was_least_sure() -> None:
    assert choose_positions([-0.1, -2.0, -0.3]) == [0, 1, 2]
    many = [-0.01 * position for position in range(100)]
    assert choose_positions(many) == list(range(76, 100))


def test_without_an_engine_the_version_waits_and_says_so(policy: Policy, publish: Publish) -> None:
    version = publish()
    refresh_version(version)
    version = reread(version)
    assert version.state == VersionState.PUBLISHED
    assert version.error == "no engine that serves tiny is up"


def test_an_engine_that_breaks_delays_the_version(engine: Engine, fake_engine: FakeEngine, publish: Publish) -> None:
    version = publish()
    fake_engine.breaks = "/v1/completions"
    refresh_version(version)
    assert reread(version).state == VersionState.PUBLISHED
    fake_engine.breaks = ""
    refresh_version(version)
    version = reread(version)
    assert (version.state, version.error) == (VersionState.READY, "")


def test_an_engine_that_is_away_does_not_hold_up_the_others(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, publish: Publish
) -> None:
    with serve_engine(FakeEngine()) as other:
        away = register_engine(base_url=other.base_url)
        reconcile_engines()
    version = publish()
    refresh_version(version)
    assert number_of(policy, LIVE) == 1
    assert not Deployment.objects.filter(engine=away).exists()


def test_one_wrong_engine_of_two_fails_the_version_everywhere(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, publish: Publish
) -> None:
    with serve_engine(FakeEngine(offset=1.0)) as other:
        register_engine(base_url=other.base_url)
        reconcile_engines()
        refresh_version(version := publish())
        assert reread(version).state == VersionState.FAILED
        assert (fake_engine.adapters, other.adapters) == ({}, {})
    assert number_of(policy, LIVE) == 0


def test_every_engine_gets_the_version(engine: Engine, fake_engine: FakeEngine, publish: Publish) -> None:
    with serve_engine(FakeEngine()) as other:
        register_engine(base_url=other.base_url)
        reconcile_engines()
        refresh_version(version := publish())
        assert set(fake_engine.adapters) == set(other.adapters) == {version.engine_name}


def test_engines_of_another_base_model_are_left_alone(engine: Engine, publish: Publish) -> None:
    with serve_engine(FakeEngine(base_model="big")) as other:
        register_engine(base_url=other.base_url)
        reconcile_engines()
        refresh_version(publish())
        assert other.adapters == {}


def test_moving_an_alias_loads_the_version_first(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, publish: Publish
) -> None:
    first, second = publish(), publish()
    for version in (first, second):
        refresh_version(version)
    fake_engine.restart()
    move_alias(policy=policy, alias=LIVE, version=reread(first), actor="owner")
    assert number_of(policy, LIVE) == 1
    assert first.engine_name in fake_engine.adapters


def test_moving_back_to_the_base_needs_no_engine(policy: Policy, publish: Publish) -> None:
    mark_ready(publish(), verification={})
    move_alias(policy=policy, alias=LIVE, version=policy.versions.get(number=0), actor="owner")
    assert number_of(policy, LIVE) == 0


def test_an_alias_does_not_move_where_no_engine_has_the_version(policy: Policy, publish: Publish) -> None:
    version = publish(goes_live=False)
    mark_ready(version, verification={})
    with pytest.raises(Conflict, match="no engine could load"):
        move_alias(policy=policy, alias=LIVE, version=version, actor="owner")
    assert number_of(policy, LIVE) == 0


def test_an_alias_does_not_move_to_a_version_that_failed(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, publish: Publish
) -> None:
    fake_engine.offset = 1.0
    refresh_version(version := publish())
    with pytest.raises(Conflict, match="only a verified version can serve"):
        move_alias(policy=policy, alias=LIVE, version=reread(version), actor="owner")
    assert fake_engine.adapters == {}


def test_a_version_without_numbers_from_the_trainer_cannot_exist(publish: Publish) -> None:
    with pytest.raises(Exception, match="probe"):
        publish(probe=Probe(token_ids=TOKENS))
