"""Policies, versions and aliases as rows."""

from collections.abc import Callable

import pytest
from django.db import IntegrityError, transaction

from apps.accounts.models import AuditEvent, Project
from apps.core.contracts.training import Probe
from apps.core.errors import Conflict, InvalidInput, NotFound
from apps.registry import services
from apps.registry.models import AliasName, EngineState, Policy, Version, VersionState
from tests.apps.registry.conftest import PROBE, Publish, number_of
from tests.factories.registry import VersionFactory

LIVE, PREVIOUS, CANDIDATE = AliasName.LIVE, AliasName.PREVIOUS, AliasName.CANDIDATE


def test_a_new_policy_serves_its_base_weights(policy: Policy) -> None:
    base = policy.versions.get()
    assert (base.number, base.state, base.engine_name, base.is_base) == (0, VersionState.READY, "tiny", True)
    assert number_of(policy, LIVE) == 0


def test_a_policy_is_made_once_and_follows_a_moved_folder(policy: Policy, project: Project) -> None:
    again = services.ensure_policy(project=project, slug="shop", base_model="tiny", base_model_dir="elsewhere")
    assert again.pk == policy.pk
    assert again.base_model_dir == "elsewhere"
    assert policy.versions.count() == 1


def test_it_refuses_another_base_model_under_a_policy(policy: Policy, project: Project) -> None:
    with pytest.raises(Conflict, match="make another project"):
        services.ensure_policy(project=project, slug="shop", base_model="big", base_model_dir="models/big")


def test_an_engine_is_registered_once_and_switched_on_again(db: None) -> None:
    engine = services.register_engine(base_url="http://127.0.0.1:8100/v1/")
    type(engine).objects.update(is_enabled=False)
    again = services.register_engine(base_url="http://127.0.0.1:8100")
    assert again.pk == engine.pk
    assert again.base_url == "http://127.0.0.1:8100"
    assert again.is_enabled


@pytest.mark.parametrize(
    "base_url",
    ["", "host:8100", "ftp://host", "http://", "http://a b", "http://u:p@host", "http://host?x=1", "http://h:0x"],
)
def test_what_is_no_address_is_no_engine(db: None, base_url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        services.register_engine(base_url=base_url)
    assert caught.value.field == "base_url"


def test_at_a_start_nothing_is_known_of_any_engine(db: None) -> None:
    engine = services.register_engine(base_url="http://127.0.0.1:8100")
    type(engine).objects.update(state=EngineState.UP, last_error="old")
    services.forget_engine_health()
    engine.refresh_from_db()
    assert (engine.state, engine.last_error) == (EngineState.UNKNOWN, "")


def test_versions_are_numbered_and_named_anew(publish: Publish) -> None:
    first, second = publish(), publish()
    assert (first.number, second.number) == (1, 2)
    assert first.engine_name.startswith("shop-v1-")
    assert second.parent == first
    assert first.lineage["base_model"] == "tiny"


def test_an_adapter_name_is_never_used_twice(publish: Publish) -> None:
    first = publish()
    with pytest.raises(IntegrityError), transaction.atomic():
        VersionFactory.create(policy=first.policy, number=9, engine_name=first.engine_name, adapter_path="x")


@pytest.mark.parametrize(
    "probe",
    [
        Probe(token_ids=(1,)),
        Probe(token_ids=(1, 2)),
        Probe(token_ids=(1, 2), logprobs=(-1.0,)),
        Probe(token_ids=(1, 2), likely_ids=(2,), logprobs=(-1.0, -1.0)),
        Probe(token_ids=(1, 2), likely_ids=(2,), logprobs=(float("nan"),)),
    ],
)
def test_it_refuses_a_probe_that_proves_nothing(publish: Publish, probe: Probe) -> None:
    with pytest.raises(InvalidInput):
        publish(probe=probe)


def test_publishing_queues_the_refresh_after_commit(
    publish: Publish, django_capture_on_commit_callbacks: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, list[str]]] = []
    monkeypatch.setattr("apps.core.jobs.current_app.send_task", lambda name, args, **_: sent.append((name, args)))
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
        version = publish()
    assert sent == [("claw.refresh_version", [version.id])]


def test_a_verified_version_goes_live_and_the_old_one_becomes_previous(policy: Policy, publish: Publish) -> None:
    version = publish()
    assert services.mark_ready(version, verification={"mean_abs_diff": 0.0})
    assert (number_of(policy, LIVE), number_of(policy, PREVIOUS)) == (1, 0)
    assert AuditEvent.objects.filter(action="alias.switched", object_id=version.id).exists()


def test_a_version_is_judged_once(publish: Publish) -> None:
    version = publish()
    assert services.mark_ready(version, verification={})
    assert not services.mark_failed(version, error="late")
    assert not services.mark_ready(version, verification={"late": True})
    version.refresh_from_db()
    assert (version.state, version.verification) == (VersionState.READY, {})


def test_a_version_that_should_not_go_live_only_gets_ready(policy: Policy, publish: Publish) -> None:
    version = publish(goes_live=False)
    services.mark_ready(version, verification={})
    assert version.state == VersionState.READY
    assert number_of(policy, LIVE) == 0


def test_an_older_version_never_overwrites_a_newer_live_one(policy: Policy, publish: Publish) -> None:
    first, second = publish(), publish()
    services.mark_ready(second, verification={})
    services.mark_ready(first, verification={})
    assert number_of(policy, LIVE) == 2


def test_a_late_check_does_not_undo_a_roll_back(policy: Policy, publish: Publish) -> None:
    first, second, third = publish(), publish(), publish()
    services.mark_ready(first, verification={})
    services.mark_ready(third, verification={})
    services.switch_alias(policy=policy, alias=LIVE, version=first, actor="owner")
    services.mark_ready(second, verification={})
    assert (number_of(policy, LIVE), number_of(policy, PREVIOUS)) == (1, 3)


def test_a_roll_back_swaps_live_and_previous(policy: Policy, publish: Publish) -> None:
    version = publish()
    services.mark_ready(version, verification={})
    services.switch_alias(policy=policy, alias=LIVE, version=policy.versions.get(number=0), actor="owner")
    assert (number_of(policy, LIVE), number_of(policy, PREVIOUS)) == (0, 1)


def test_switching_to_what_is_there_changes_nothing(policy: Policy) -> None:
    base = policy.versions.get()
    services.switch_alias(policy=policy, alias=LIVE, version=base, actor="owner")
    assert number_of(policy, PREVIOUS) is None
    assert not AuditEvent.objects.filter(action="alias.switched").exists()


@pytest.mark.parametrize("state", [VersionState.PUBLISHED, VersionState.FAILED])
def test_an_alias_refuses_a_version_that_did_not_pass(policy: Policy, state: VersionState) -> None:
    version = VersionFactory.create(policy=policy, number=1, adapter_path="x", state=state)
    with pytest.raises(Conflict, match="only a verified version can serve"):
        services.switch_alias(policy=policy, alias=CANDIDATE, version=version, actor="owner")


def test_an_alias_refuses_another_policys_version(policy: Policy) -> None:
    with pytest.raises(InvalidInput, match="another policy"):
        services.switch_alias(policy=policy, alias=LIVE, version=VersionFactory.create(), actor="owner")


def test_a_version_without_an_alias_is_retired_and_comes_back(policy: Policy, publish: Publish) -> None:
    first, second = publish(), publish()
    services.mark_ready(first, verification={})
    services.mark_ready(second, verification={})
    services.switch_alias(policy=policy, alias=CANDIDATE, version=first, actor="owner")
    services.switch_alias(policy=policy, alias=CANDIDATE, version=policy.versions.get(number=0), actor="owner")
    first.refresh_from_db()
    assert first.retired_at is None  # still `previous`
    services.switch_alias(policy=policy, alias=PREVIOUS, version=policy.versions.get(number=0), actor="owner")
    assert Version.objects.get(pk=first.pk).retired_at is not None
    services.switch_alias(policy=policy, alias=LIVE, version=first, actor="owner")
    assert Version.objects.get(pk=first.pk).retired_at is None


def test_taking_the_candidate_off_gives_live_its_share_and_retires_it(policy: Policy, publish: Publish) -> None:
    version = publish(goes_live=False)
    services.mark_ready(version, verification={})
    services.switch_alias(policy=policy, alias=CANDIDATE, version=version, actor="owner")
    services.split_live(policy=policy, shares={LIVE: 70, CANDIDATE: 30}, actor="owner")

    assert services.take_off_candidate(policy=policy, actor="owner").live_share == 30

    assert number_of(policy, CANDIDATE) is None
    assert Version.objects.get(pk=version.pk).retired_at is not None
    event = AuditEvent.objects.get(action="alias.taken_off")
    assert (event.actor, event.object_id, event.detail["live_share"]) == ("owner", version.id, "30")
    services.switch_alias(policy=policy, alias=CANDIDATE, version=version, actor="owner")
    assert policy.aliases.get(name=CANDIDATE).live_share == 0
    assert Version.objects.get(pk=version.pk).retired_at is None


def test_there_is_no_candidate_to_take_off_at_first(policy: Policy) -> None:
    with pytest.raises(NotFound, match="no version is the candidate"):
        services.take_off_candidate(policy=policy, actor="owner")


def test_the_probe_is_kept_with_the_version(publish: Publish) -> None:
    version = Version.objects.get(pk=publish().pk)
    kept = {"token_ids": PROBE.token_ids, "likely_ids": PROBE.likely_ids, "logprobs": PROBE.logprobs}
    assert version.probe == {name: list(values) for name, values in kept.items()}
