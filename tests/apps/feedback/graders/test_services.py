"""Graders, their versions, and what must be there before one is switched on."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from apps.accounts.access import Caller
from apps.accounts.models import ApiKey, Project, User
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound, ServiceError
from apps.core.ids import new_id
from apps.feedback.graders import services
from apps.feedback.graders.kinds import find_kind
from apps.feedback.graders.models import GraderVersion
from apps.feedback.graders.services import (
    VersionDraft,
    add_version,
    archive_grader,
    cancel_backfill,
    create_grader,
    find_faults,
    find_grader,
    find_version,
    hold_to_shape,
    is_loose,
    list_graders,
    renew_secret,
    restore_grader,
    start_backfill,
    start_dry_run,
    switch_off,
    switch_on,
)
from apps.feedback.rescoring import change_schema
from apps.registry.credentials import unseal_credential
from tests.apps.feedback.graders.conftest import MakeVersion
from tests.factories.registry import TeacherFactory
from tests.fakes.webhook import FakeWebhook

pytestmark = pytest.mark.django_db


def test_another_setting_is_another_version(caller: Caller, make_version: MakeVersion) -> None:
    first = make_version("regex", settings={"pattern": "x"})
    second = add_version(caller=caller, grader=first.grader, draft=VersionDraft(settings={"pattern": "y"}))
    assert (str(first), str(second)) == ("grader@v1", "grader@v2")
    assert find_version(first.grader, 2) == second
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
        GraderVersion.objects.update(settings={})


def test_it_must_be_tried_before_it_is_switched_on(caller: Caller, make_version: MakeVersion) -> None:
    version = make_version("regex", settings={"pattern": "x"}, tried=False)
    for act in (switch_on, start_backfill):
        with pytest.raises(Conflict, match="dry run"):
            act(caller=caller, version=version)
    start_dry_run(caller=caller, version=version)
    with pytest.raises(Conflict, match="dry run"):  # begun is not done
        switch_on(caller=caller, version=version)


def test_it_is_switched_on_and_off(caller: Caller, make_version: MakeVersion) -> None:
    version = make_version("regex", settings={"pattern": "x"})
    assert switch_on(caller=caller, version=version).live == version
    for _ in range(2):
        assert switch_off(caller=caller, grader=version.grader).live is None


def test_an_archived_one_does_nothing_until_it_is_restored(caller: Caller, make_version: MakeVersion) -> None:
    version = make_version("regex", settings={"pattern": "x"})
    grader = switch_on(caller=caller, version=version)
    backfill = start_backfill(caller=caller, version=version)
    with pytest.raises(Conflict, match="back-fill of it is under way"):
        archive_grader(caller=caller, grader=grader)
    cancel_backfill(caller=caller, backfill=backfill)
    for _ in range(2):
        archived = archive_grader(caller=caller, grader=grader)
        assert (archived.live, archived.archived_at is None) == (None, False)
    for act in (switch_on, start_dry_run, start_backfill):
        with pytest.raises(Conflict, match="grader is archived: restore it first"):
            act(caller=caller, version=version)
    with pytest.raises(Conflict, match="archived"):
        add_version(caller=caller, grader=grader, draft=VersionDraft(settings={"pattern": "y"}))
    for _ in range(2):
        assert restore_grader(caller=caller, grader=grader).archived_at is None
    assert switch_on(caller=caller, version=version).live == version


def test_archived_ones_leave_room_and_are_listed_last(
    caller: Caller, project: Project, make_version: MakeVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "MAX_GRADERS", 2)
    first, _ = (make_version("regex", name=name, settings={"pattern": "x"}).grader for name in ("a", "b"))
    draft = VersionDraft(settings={"pattern": "x"})
    with pytest.raises(Conflict, match="at most 2 graders: archive one"):
        create_grader(caller=caller, project=project, name="c", kind="regex", draft=draft)
    archive_grader(caller=caller, grader=first)
    create_grader(caller=caller, project=project, name="c", kind="regex", draft=draft)
    assert [grader.name for grader in list_graders(project)] == ["b", "c", "a"]
    with pytest.raises(Conflict, match="at most 2 graders"):
        restore_grader(caller=caller, grader=first)


def test_a_webhook_has_a_secret_that_can_be_renewed(caller: Caller, project: Project, webhook: FakeWebhook) -> None:
    draft = VersionDraft(settings={"url": webhook.url})
    version, secret = create_grader(caller=caller, project=project, name="hook", kind="webhook", draft=draft)
    assert unseal_credential(version.grader.sealed_secret) == secret
    assert renew_secret(caller=caller, grader=version.grader) != secret


def test_other_kinds_have_none(caller: Caller, make_version: MakeVersion) -> None:
    with pytest.raises(Conflict, match="no webhook"):
        renew_secret(caller=caller, grader=make_version("regex", settings={"pattern": "x"}).grader)


@pytest.mark.parametrize(
    ("kind", "draft", "field"),
    [
        ("oracle", {}, "kind"),
        ("regex", {}, "settings.pattern"),
        ("regex", {"settings": {"pattern": "("}}, "settings.pattern"),
        ("regex", {"settings": {"pattern": "x", "colour": "red"}}, "settings.colour"),
        ("regex", {"settings": {"pattern": "x", "passed": 2}}, "settings.passed"),
        ("regex", {"settings": {"pattern": "x", "passed": float("nan")}}, "settings.passed"),
        ("regex", {"settings": {"pattern": "x"}, "field": "clarity"}, "field"),
        ("regex", {"settings": {"pattern": "x"}, "field": "comment"}, "field"),
        ("regex", {"settings": {"pattern": "x"}, "query": "reward:good"}, "q"),
        ("regex", {"settings": {"pattern": "x"}, "query": "x" * 1001}, "query"),
        ("regex", {"settings": {"pattern": "x"}, "sample": 0}, "sample"),
        ("regex", {"settings": {"pattern": "x"}, "sample": float("nan")}, "sample"),
        ("judge", {"settings": {"model": "nobody"}}, "model"),
        ("next_state", {"field": "stars"}, "field"),
        ("webhook", {"settings": {"url": "http://127.0.0.1:1/"}}, "settings.url"),
        ("plugin", {"settings": {"plugin": "os:system"}}, "plugin"),
        ("reward_model", {"settings": {"model": "../secrets"}}, "settings.model"),
        ("reasoning_gym", {"settings": {"task": "__import__('os')"}}, "settings.task"),
    ],
)
def test_it_refuses_what_makes_no_sense(
    caller: Caller, project: Project, kind: str, draft: dict[str, Any], field: str
) -> None:
    stars = {"name": "stars", "kind": "scale", "low": 1, "high": 5}
    change_schema(caller=caller, project=project, definition={"fields": [stars]})
    with pytest.raises(ServiceError) as caught:
        create_grader(caller=caller, project=project, name="x", kind=kind, draft=VersionDraft(**draft))
    assert caught.value.field == field
    assert not GraderVersion.objects.exists()


@pytest.mark.parametrize("name", ["", "Loud", "a b", "x" * 61, "-x", "../x"])
def test_a_name_stands_in_addresses(caller: Caller, project: Project, name: str) -> None:
    draft = VersionDraft(settings={"pattern": "x"})
    with pytest.raises(InvalidInput, match="a name has"):
        create_grader(caller=caller, project=project, name=name, kind="regex", draft=draft)


def test_a_name_is_taken_once(make_version: MakeVersion) -> None:
    make_version("regex", settings={"pattern": "x"})
    with pytest.raises(Conflict, match="already"):
        make_version("regex", settings={"pattern": "x"})


def test_who_may(
    make_version: MakeVersion, caller: Caller, mate: User, stranger: User, key: ApiKey, other_key: ApiKey
) -> None:
    version = make_version("regex", settings={"pattern": "x"})
    draft = VersionDraft(settings={"pattern": "y"})
    for who in (Caller(user=mate), Caller(key=key)):
        with pytest.raises(Forbidden):
            add_version(caller=who, grader=version.grader, draft=draft)
        with pytest.raises(Forbidden):
            switch_on(caller=who, version=version)
        assert find_grader(caller=who, grader_id=version.grader.id) == version.grader
    for who in (Caller(user=stranger), Caller(key=other_key)):
        with pytest.raises(NotFound):
            find_grader(caller=who, grader_id=version.grader.id)
    for missing in (new_id("grdr"), "nonsense"):
        with pytest.raises(NotFound):
            find_grader(caller=caller, grader_id=missing)


def test_a_backfill_is_cancelled_once_and_one_at_a_time(caller: Caller, make_version: MakeVersion) -> None:
    version = make_version("regex", settings={"pattern": "x"})
    backfill = start_backfill(caller=caller, version=version)
    with pytest.raises(Conflict, match="under way"):
        start_backfill(caller=caller, version=version)
    assert cancel_backfill(caller=caller, backfill=backfill).state == "cancelled"
    with pytest.raises(Conflict, match="cancelled"):
        cancel_backfill(caller=caller, backfill=backfill)


@pytest.mark.parametrize(
    ("told", "is_held"),
    [
        ({}, True),
        ({"model": "big"}, False),
        ({"model": "big", "hold_to_shape": True}, True),
        ({"hold_to_shape": False}, False),
    ],
)
def test_our_own_model_is_held_to_the_shape_unless_it_is_told_otherwise(
    project: Project, make_version: MakeVersion, told: dict[str, Any], is_held: bool
) -> None:
    TeacherFactory.create(project=project, name="big")
    version = make_version("judge", settings=told)
    assert (version.settings["hold_to_shape"], is_loose(version)) == (is_held, not is_held)


def test_a_judge_is_held_by_another_version(caller: Caller, make_version: MakeVersion) -> None:
    loose = make_version("judge", settings={"hold_to_shape": False, "question": "Is it polite?"}, sample=0.5)
    held = hold_to_shape(caller=caller, version=loose)
    assert (held.number, held.settings, held.sample) == (2, {**loose.settings, "hold_to_shape": True}, 0.5)
    for version in (held, make_version("regex", name="rule", settings={"pattern": "x"})):
        with pytest.raises(Conflict, match="no model that could be held"):
            hold_to_shape(caller=caller, version=version)


def test_all_that_is_wrong_with_a_draft_is_found(project: Project) -> None:
    draft = VersionDraft(
        settings={"model": "", "n_votes": 0, "strange": 1}, field="nothing", query="reward:good", sample=7
    )
    faults = find_faults(project=project, kind=find_kind("judge"), draft=draft, name="A B")
    found = {fault.field: fault.message for fault in faults}
    assert set(found) == {
        "settings.model", "settings.n_votes", "settings.strange", "name", "field", "sample", "q"
    }  # fmt: skip
    assert len(faults) == len(found)
    assert find_faults(project=project, kind=find_kind("judge"), draft=VersionDraft(), name="polite") == []
