"""Engines as the rows ask for, rows as the engines are."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from apps.registry import client as client_module
from apps.registry.models import AliasName, Deployment, DeploymentState, Engine, EngineState, Policy, Version
from apps.registry.queries import find_context_length
from apps.registry.reconcile import ASKED_S, reconcile_engines
from apps.registry.refresh import refresh_version
from apps.registry.services import register_engine, switch_alias
from tests.apps.registry.conftest import Publish
from tests.fakes.adapter_engine import FakeEngine, serve_engine

Capture = Callable[..., object]


@pytest.fixture
def notices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What other processes are told."""
    sent: list[str] = []
    monkeypatch.setattr("apps.registry.reconcile.notify_processes", sent.append)
    return sent


def reread(engine: Engine) -> Engine:
    return Engine.objects.get(pk=engine.pk)


def age(version: Version, *, hours: int = 1) -> None:
    """Make a version look as if it had been out of use for a while."""
    then = timezone.now() - timedelta(hours=hours)
    Version.objects.filter(pk=version.pk).update(ready_at=then, created_at=then)
    Version.objects.filter(pk=version.pk, retired_at__isnull=False).update(retired_at=then)


def test_it_learns_health_and_base_model(fake_engine: FakeEngine, db: None, notices: list[str]) -> None:
    engine = register_engine(base_url=fake_engine.base_url)
    reconcile_engines()
    engine = reread(engine)
    assert (engine.state, engine.base_model, engine.last_error) == (EngineState.UP, "tiny", "")
    assert engine.max_model_len == find_context_length() == find_context_length("tiny") == 2048
    assert find_context_length("big") is None
    assert engine.last_seen_at is not None
    assert notices == ["routes-changed"]
    reconcile_engines()
    assert notices == ["routes-changed"]  # nothing new, nothing said


def test_a_dead_engine_is_down_at_once_with_the_reason(db: None) -> None:
    with serve_engine(FakeEngine()) as fake:
        engine = register_engine(base_url=fake.base_url)
        reconcile_engines()
    reconcile_engines()
    engine = reread(engine)
    assert engine.state == EngineState.DOWN
    assert engine.last_error == "the engine cannot be reached: nothing listens there: it is starting, or it is down"


def test_an_engine_that_stays_down_says_why_now(engine: Engine, fake_engine: FakeEngine) -> None:
    Engine.objects.filter(pk=engine.pk).update(state=EngineState.DOWN, last_error="it was away")
    fake_engine.lies["/v1/models"] = {"what": "?"}
    reconcile_engines()
    assert "unknown shape" in reread(engine).last_error


def test_a_slow_engine_gets_some_patience(
    engine: Engine, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "QUICK_S", 0.1)
    fake_engine.delay_s = 1.0
    reconcile_engines()
    assert reread(engine).state == EngineState.UP
    Engine.objects.update(last_seen_at=timezone.now() - timedelta(minutes=1))
    reconcile_engines()
    assert reread(engine).state == EngineState.DOWN


def test_an_engine_that_talks_nonsense_is_down(engine: Engine, fake_engine: FakeEngine) -> None:
    fake_engine.lies["/v1/models"] = {"what": "?"}
    reconcile_engines()
    assert reread(engine).state == EngineState.DOWN


def test_an_engine_that_is_switched_off_is_left_alone(engine: Engine, fake_engine: FakeEngine) -> None:
    Engine.objects.update(is_enabled=False)
    n_calls = len(fake_engine.calls)
    reconcile_engines()
    assert len(fake_engine.calls) == n_calls


def test_after_a_restart_aliased_versions_are_back_before_the_engine_serves_them(
    engine: Engine, fake_engine: FakeEngine, publish: Publish, notices: list[str]
) -> None:
    refresh_version(version := publish())
    notices.clear()
    fake_engine.restart()
    reconcile_engines()
    assert list(fake_engine.adapters) == [version.engine_name]
    assert Deployment.objects.get(version=version).state == DeploymentState.LOADED
    assert notices == ["routes-changed"]


def test_a_version_that_cannot_be_restored_is_not_counted_as_served(
    engine: Engine, fake_engine: FakeEngine, publish: Publish
) -> None:
    refresh_version(version := publish())
    fake_engine.restart()
    fake_engine.refuses = "disk gone"
    reconcile_engines()
    assert Deployment.objects.get(version=version).state == DeploymentState.FAILED
    assert reread(engine).state == EngineState.UP  # the base still answers
    fake_engine.refuses = ""
    reconcile_engines()
    assert Deployment.objects.get(version=version).state == DeploymentState.LOADED


def test_a_version_that_is_loaded_while_the_engine_tells_what_it_has_is_not_taken_for_lost(
    engine: Engine, fake_engine: FakeEngine, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, ask = publish(), client_module.EngineClient.list_models

    def load_meanwhile(client: client_module.EngineClient) -> list[client_module.ServedModel]:
        models = ask(client)
        monkeypatch.setattr(client_module.EngineClient, "list_models", ask)
        refresh_version(version)
        return models

    monkeypatch.setattr(client_module.EngineClient, "list_models", load_meanwhile)
    reconcile_engines()
    assert Deployment.objects.get(version=version).state == DeploymentState.LOADED


def test_versions_lost_in_a_restart_that_nobody_names_are_marked_gone(
    engine: Engine, fake_engine: FakeEngine, publish: Publish
) -> None:
    refresh_version(version := publish(goes_live=False))
    fake_engine.restart()
    reconcile_engines()
    assert fake_engine.adapters == {}
    assert Deployment.objects.get(version=version).state == DeploymentState.UNLOADED


def test_retired_versions_are_unloaded_after_the_drain_time(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, publish: Publish
) -> None:
    versions = [publish() for _ in range(6)]
    for version in versions:
        refresh_version(version)
    reconcile_engines()
    assert len(fake_engine.adapters) == 6  # calls may still be in flight
    for version in versions:
        age(version)
    reconcile_engines()
    # Live and previous are 6 and 5; the newest three are 4 to 6.
    assert set(fake_engine.adapters) == {version.engine_name for version in versions[3:]}
    gone = Deployment.objects.filter(state=DeploymentState.UNLOADED)
    assert sorted(row.version.number for row in gone) == [1, 2, 3]


def test_an_old_version_with_an_alias_stays(
    engine: Engine, fake_engine: FakeEngine, policy: Policy, publish: Publish
) -> None:
    versions = [publish() for _ in range(6)]
    for version in versions:
        refresh_version(version)
    switch_alias(policy=policy, alias=AliasName.CANDIDATE, version=versions[0], actor="owner")
    for version in versions:
        age(version)
    reconcile_engines()
    assert versions[0].engine_name in fake_engine.adapters


def test_the_files_of_a_loaded_adapter_are_never_touched(
    engine: Engine, fake_engine: FakeEngine, publish: Publish, settings: object
) -> None:
    versions = [publish() for _ in range(5)]
    for version in versions:
        refresh_version(version)
        age(version)
    reconcile_engines()
    assert all((Path(version.adapter_path) / "adapter_config.json").exists() for version in versions)


def test_a_version_whose_message_was_lost_is_asked_for_again(
    engine: Engine,
    publish: Publish,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Capture,
) -> None:
    sent: list[tuple[list[str], float | None]] = []
    send = "apps.core.jobs.current_app.send_task"
    monkeypatch.setattr(send, lambda _name, args, expires: sent.append((args, expires)))
    version = publish()
    reconcile_engines()
    assert sent == []  # its own message may be on the way
    Version.objects.filter(pk=version.pk).update(created_at=timezone.now() - timedelta(minutes=1))
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
        reconcile_engines()
    assert sent == [([version.id], ASKED_S)]  # behind a long check they drop out, and do not pile up
