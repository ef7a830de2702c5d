"""Whole models: one at a time in the base's place, verified before it speaks, and the way back from each fault."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.accounts.models import Project
from apps.core.errors import Conflict, InvalidInput, Unavailable
from apps.registry import deployments, services
from apps.registry.client import EngineClient, EngineUnreachable
from apps.registry.models import (
    AliasName,
    Deployment,
    DeploymentState,
    Engine,
    EngineState,
    Policy,
    Version,
    VersionKind,
    VersionState,
)
from apps.registry.reconcile import reconcile_engines
from apps.registry.refresh import move_alias, refresh_version
from apps.registry.speaking import find_version_speaker, list_held_versions
from tests.apps.registry.conftest import Publish, number_of
from tests.fakes.adapter_engine import FakeEngine

LIVE, PREVIOUS = AliasName.LIVE, AliasName.PREVIOUS
CHANGE = ["/pause?mode=wait", "/collective_rpc", "/reset_prefix_cache?reset_running_requests=true",
          "/update_weight_version", "/resume"]  # fmt: skip


@pytest.fixture(autouse=True)
def _heard_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "HEAR_S", 0)


@pytest.fixture
def whole(publish: Publish) -> Version:
    return publish(kind=VersionKind.WHOLE)


def reread(version: Version) -> Version:
    return Version.objects.select_related("policy__project__team").get(pk=version.pk)


def state_of(engine: Engine) -> tuple[str | None, bool]:
    """Which whole model it holds, and whether that is changing."""
    engine.refresh_from_db()
    return engine.weights_id, engine.moving_since is not None


def base_of(policy: Policy) -> Version:
    return reread(policy.versions.get(number=0))


def test_a_whole_model_takes_the_bases_place_and_goes_live(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, whole: Version
) -> None:
    fake_engine.calls.clear()
    refresh_version(whole)
    assert [path for path, _ in fake_engine.calls if path in CHANGE] == CHANGE
    assert (fake_engine.weights, fake_engine.weights_name) == (whole.adapter_path, whole.id)
    assert not fake_engine.is_paused
    assert reread(whole).state == VersionState.READY
    assert whole.engine_name == policy.base_model
    assert (number_of(policy, LIVE), number_of(policy, PREVIOUS)) == (1, 0)
    assert state_of(engine) == (whole.id, False)
    assert Deployment.objects.get(version=whole).state == DeploymentState.LOADED


def test_the_next_one_replaces_it(engine: Engine, fake_engine: FakeEngine, whole: Version, publish: Publish) -> None:
    refresh_version(whole)
    second = publish(kind=VersionKind.WHOLE)
    refresh_version(second)
    assert fake_engine.weights == second.adapter_path
    assert Deployment.objects.get(version=whole).state == DeploymentState.UNLOADED
    assert Deployment.objects.get(version=second).state == DeploymentState.LOADED


def test_one_that_fails_its_check_is_taken_back(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, whole: Version, publish: Publish
) -> None:
    refresh_version(whole)
    second = publish(kind=VersionKind.WHOLE)
    fake_engine.offset_of[second.adapter_path] = 0.01
    refresh_version(second)
    assert reread(second).state == VersionState.FAILED
    assert (fake_engine.weights, number_of(policy, LIVE)) == (whole.adapter_path, 1)
    assert state_of(engine) == (whole.id, False)
    assert Deployment.objects.get(version=whole).state == DeploymentState.LOADED


def test_a_refused_reload_leaves_the_base_speaking(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, whole: Version
) -> None:
    fake_engine.refuses_folders = {whole.adapter_path}
    refresh_version(whole)
    assert "shape mismatch" in reread(whole).error
    assert (fake_engine.weights, number_of(policy, LIVE)) == (policy.base_model_dir, 0)
    assert (state_of(engine), fake_engine.is_paused) == ((None, False), False)


def test_an_engine_that_takes_no_weights_back_is_held_until_it_does(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, whole: Version
) -> None:
    fake_engine.refuses_folders = {whole.adapter_path, policy.base_model_dir}
    refresh_version(whole)
    assert state_of(engine) == (None, True)
    fake_engine.refuses_folders = set()
    Engine.objects.update(moving_since=timezone.now() - timedelta(seconds=deployments.STUCK_S + 1))
    reconcile_engines()
    assert (fake_engine.weights, fake_engine.is_paused) == (policy.base_model_dir, False)
    assert state_of(engine) == (None, False)


def test_an_engine_left_in_the_middle_of_a_change_is_mended(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, whole: Version
) -> None:
    refresh_version(whole)
    long_ago = timezone.now() - timedelta(seconds=deployments.STUCK_S + 1)
    for since, is_mended in ((timezone.now(), False), (long_ago, True)):
        fake_engine.is_paused = True
        Engine.objects.update(moving_since=since)
        reconcile_engines()
        assert state_of(engine)[1] != is_mended
        assert fake_engine.is_paused != is_mended


def test_two_cannot_change_one_engine_at_once(engine: Engine, fake_engine: FakeEngine, whole: Version) -> None:
    Engine.objects.update(moving_since=timezone.now())
    refresh_version(whole)
    assert "being changed by another process" in reread(whole).error
    assert reread(whole).state == VersionState.PUBLISHED
    assert fake_engine.weights == ""


def test_an_engine_whose_weights_are_changing_counts_as_up(
    engine: Engine, fake_engine: FakeEngine, publish: Publish
) -> None:
    refresh_version(publish())  # an adapter that live names, and that is gone for the moment
    fake_engine.adapters.clear()
    Engine.objects.update(moving_since=timezone.now())
    reconcile_engines()
    engine.refresh_from_db()
    assert (engine.state, fake_engine.adapters) == (EngineState.UP, {})


def test_a_restarted_engine_gets_its_whole_model_back(engine: Engine, fake_engine: FakeEngine, whole: Version) -> None:
    refresh_version(whole)
    reconcile_engines()
    fake_engine.restart()
    reconcile_engines()
    assert fake_engine.weights == whole.adapter_path
    assert state_of(engine) == (whole.id, False)


def test_the_way_back_to_the_base(engine: Engine, fake_engine: FakeEngine, policy: Policy, whole: Version) -> None:
    refresh_version(whole)
    move_alias(policy=policy, alias=LIVE, version=base_of(policy), actor="me")
    assert fake_engine.weights == policy.base_model_dir
    assert state_of(engine) == (None, False)
    assert number_of(policy, LIVE) == 0
    assert Deployment.objects.get(version=whole).state == DeploymentState.UNLOADED
    move_alias(policy=policy, alias=LIVE, version=reread(whole), actor="me")
    assert fake_engine.weights == whole.adapter_path


def test_adapters_do_not_stay_on_a_base_that_is_gone(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, publish: Publish
) -> None:
    adapter = publish()
    refresh_version(adapter)
    move_alias(policy=policy, alias=LIVE, version=base_of(policy), actor="me")
    whole = publish(kind=VersionKind.WHOLE)
    refresh_version(whole)
    assert fake_engine.adapters == {}
    reconcile_engines()  # `previous` names the base now, but an alias on the adapter would not bring it back either
    assert fake_engine.adapters == {}
    move_alias(policy=policy, alias=LIVE, version=reread(adapter), actor="me")
    assert (fake_engine.weights, list(fake_engine.adapters)) == (policy.base_model_dir, [adapter.engine_name])


def test_another_project_cannot_stand_on_a_base_that_is_taken(
    engine: Engine, whole: Version, other_project: Project
) -> None:
    with pytest.raises(Conflict, match="serve all the weights of shop"):
        services.ensure_policy(project=other_project, slug="other", base_model="tiny", base_model_dir="models/tiny")


@pytest.mark.parametrize("live_is_whole", [False, True])
def test_one_that_is_not_to_go_live_is_verified_and_makes_way_again(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, publish: Publish, live_is_whole: bool
) -> None:
    if live_is_whole:
        refresh_version(publish(kind=VersionKind.WHOLE))
    live = services.find_live_version(policy)
    waiting = publish(kind=VersionKind.WHOLE, goes_live=False)
    refresh_version(waiting)
    assert reread(waiting).state == VersionState.READY
    assert fake_engine.weights == (live.adapter_path or policy.base_model_dir)
    assert state_of(engine) == (live.id if live_is_whole else None, False)


def test_what_is_under_its_check_is_left_in_its_place(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, whole: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reconciling goes on beside a check, and must not take away what is being compared."""
    ask = EngineClient.probe_logprobs

    def reconcile_meanwhile(client: EngineClient, *question: Any) -> list[float]:
        reconcile_engines()
        return ask(client, *question)

    monkeypatch.setattr(EngineClient, "probe_logprobs", reconcile_meanwhile)
    refresh_version(whole)
    assert (reread(whole).state, state_of(engine)) == (VersionState.READY, (whole.id, False))


def test_an_engine_that_falls_silent_in_a_check_is_not_left_with_what_was_checked(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, whole: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stay_silent(*_question: object) -> list[float]:
        raise EngineUnreachable("it does not answer")

    monkeypatch.setattr(EngineClient, "probe_logprobs", stay_silent)
    refresh_version(whole)
    assert reread(whole).state == VersionState.PUBLISHED
    assert (fake_engine.weights, state_of(engine)) == (policy.base_model_dir, (None, False))


def test_what_was_not_put_back_is_put_back_later(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, publish: Publish
) -> None:
    waiting = publish(kind=VersionKind.WHOLE, goes_live=False)
    fake_engine.refuses_folders = {policy.base_model_dir}
    refresh_version(waiting)
    assert state_of(engine) == (waiting.id, False)
    fake_engine.refuses_folders = set()
    reconcile_engines()
    assert (fake_engine.weights, state_of(engine)) == (policy.base_model_dir, (None, False))


def test_no_other_alias_takes_lives_weights_away(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, whole: Version, publish: Publish
) -> None:
    refresh_version(whole)
    later = publish(kind=VersionKind.WHOLE, goes_live=False)
    refresh_version(later)
    for version in (reread(later), base_of(policy)):
        with pytest.raises(Conflict, match="cannot answer at one time"):
            move_alias(policy=policy, alias=AliasName.CANDIDATE, version=version, actor="me")
    with pytest.raises(Conflict, match="cannot answer at one time"):  # previous names the base
        services.split_live(policy=policy, shares={LIVE: 50, PREVIOUS: 50}, actor="me")
    assert fake_engine.weights == whole.adapter_path


def test_the_base_is_asked_only_where_it_is(engine: Engine, policy: Policy, whole: Version) -> None:
    base = base_of(policy)
    assert [version.number for version in list_held_versions(policy.project_id)] == [0]
    refresh_version(whole)
    assert [version.number for version in list_held_versions(policy.project_id)] == [1]
    assert find_version_speaker(reread(whole)).engine == engine
    with pytest.raises(Unavailable, match="no engine serves"):
        find_version_speaker(base)


def test_another_policys_version_touches_no_engine(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, publish: Publish, other_project: Project
) -> None:
    adapter = publish(goes_live=False)
    refresh_version(adapter)
    fake_engine.adapters.clear()
    fake_engine.calls.clear()
    other = services.ensure_policy(project=other_project, slug="other", base_model="big", base_model_dir="models/big")
    with pytest.raises(InvalidInput, match="another policy"):
        move_alias(policy=other, alias=LIVE, version=reread(adapter), actor="me")
    assert fake_engine.calls == []
