"""The model line: versions, promoting, rolling back."""

import pytest
from django.test import Client

from apps.accounts.models import Agent, AuditEvent, Project, User
from apps.registry.models import (
    Alias,
    AliasName,
    Deployment,
    DeploymentState,
    Policy,
    Version,
    VersionKind,
    VersionState,
)
from tests.factories.registry import EngineFactory, VersionFactory


def new_version(policy: Policy, base: Version, *, number: int = 1, state: str = VersionState.READY) -> Version:
    version: Version = VersionFactory.create(
        policy=policy, number=number, parent=base, adapter_path=f"/runs/{number}", state=state, sha256="ab" * 32
    )
    engine = EngineFactory.create(base_model=policy.base_model)
    Deployment.objects.create(engine=engine, version=version, state=DeploymentState.LOADED)
    return version


def live(policy: Policy) -> int:
    return Alias.objects.get(policy=policy, name=AliasName.LIVE).version.number


def test_versions_are_listed_with_their_lineage(viewer_browser: Client, policy: Policy, base: Version) -> None:
    new_version(policy, base, state=VersionState.FAILED)
    Version.objects.filter(number=1).update(error="gap of 2 nats", lineage={"run_id": "run_x", "step": 4})
    html = viewer_browser.get("/p/shop/models").content.decode()
    for words in ("base weights", "gap of 2 nats", "/p/shop/runs/run_x/batches/4", "on v0", "abababab"):
        assert words in html


def test_a_project_without_a_line_says_what_to_do(viewer_browser: Client, project: Project, agent: Agent) -> None:
    assert "No model line yet" in viewer_browser.get("/p/shop/models").content.decode()


def test_a_trainer_promotes_and_rolls_back(trainer_browser: Client, policy: Policy, base: Version) -> None:
    new_version(policy, base)
    assert trainer_browser.post("/p/shop/models/1/promote")["Location"] == "/p/shop/models"
    assert live(policy) == 1
    assert "Roll back to v0" in trainer_browser.get("/p/shop/models").content.decode()
    trainer_browser.post("/p/shop/models/roll-back")
    assert live(policy) == 0
    assert "Make v1 live again" in trainer_browser.get("/p/shop/models").content.decode()
    assert AuditEvent.objects.filter(actor="trainer@example.org").count() == 2


def test_an_unverified_version_cannot_go_live(trainer_browser: Client, policy: Policy, base: Version) -> None:
    new_version(policy, base, state=VersionState.PUBLISHED)
    assert trainer_browser.post("/p/shop/models/1/promote").status_code == 409
    assert trainer_browser.post("/p/shop/models/9/promote").status_code == 404
    assert live(policy) == 0


CANDIDATE = "/p/shop/models/1/candidate"


def test_a_trainer_makes_a_verified_version_the_candidate(
    trainer_browser: Client, policy: Policy, base: Version
) -> None:
    new_version(policy, base)
    assert f'action="{CANDIDATE}"' in trainer_browser.get("/p/shop/models").content.decode()

    assert trainer_browser.post(CANDIDATE)["Location"] == "/p/shop/models"

    html = trainer_browser.get("/p/shop/models").content.decode()
    assert (Alias.objects.get(name=AliasName.CANDIDATE).version.number, live(policy)) == (1, 0)
    assert 'id="share-candidate"' in html
    assert f'action="{CANDIDATE}"' not in html
    assert AuditEvent.objects.get(action="alias.switched").actor == "trainer@example.org"


def test_a_candidate_that_takes_calls_is_asked_about_before_another_takes_its_place(
    trainer_browser: Client, policy: Policy, base: Version
) -> None:
    candidate_beside_live(policy, base)
    second = VersionFactory.create(policy=policy, number=2, parent=base, adapter_path="/runs/2", state="ready")
    Deployment.objects.create(engine=Deployment.objects.get().engine, version=second, state=DeploymentState.LOADED)
    Alias.objects.filter(name=AliasName.CANDIDATE).update(live_share=30)

    assert "It answers 30 % of the calls from then on" in trainer_browser.get("/p/shop/models").content.decode()

    trainer_browser.post("/p/shop/models/2/candidate")
    assert (Alias.objects.get(name=AliasName.CANDIDATE).version, share(policy)) == (second, 30)


def test_what_cannot_be_a_candidate_is_not_offered_and_refused(
    trainer_browser: Client, policy: Policy, base: Version
) -> None:
    new_version(policy, base, state=VersionState.PUBLISHED)
    assert CANDIDATE not in trainer_browser.get("/p/shop/models").content.decode()
    assert trainer_browser.post(CANDIDATE).status_code == 409
    Version.objects.filter(number=1).update(state=VersionState.READY, kind=VersionKind.WHOLE)
    html = trainer_browser.get("/p/shop/models").content.decode()
    assert ("/p/shop/models/1/promote" in html, CANDIDATE in html) == (True, False)
    assert trainer_browser.post(CANDIDATE).status_code == 409
    assert not Alias.objects.filter(name=AliasName.CANDIDATE).exists()


def test_who_may_not_make_a_candidate_cannot(
    viewer_browser: Client, stranger_browser: Client, client: Client, policy: Policy, base: Version
) -> None:
    new_version(policy, base)
    assert "Make candidate" in viewer_browser.get("/p/shop/models").content.decode()  # and whom to ask
    assert viewer_browser.post(CANDIDATE).status_code == 403
    assert stranger_browser.post(CANDIDATE).status_code == 404
    assert "/login" in client.post(CANDIDATE)["Location"]
    assert not Alias.objects.filter(name=AliasName.CANDIDATE).exists()


def test_a_candidate_is_made_by_posting_the_number_of_a_version(trainer_browser: Client, policy: Policy) -> None:
    assert trainer_browser.get(CANDIDATE).status_code == 405
    assert trainer_browser.post("/p/shop/models/9/candidate").status_code == 404


TAKE_OFF = "/p/shop/models/candidate/off"


def test_a_trainer_takes_the_candidate_off_and_back(trainer_browser: Client, policy: Policy, base: Version) -> None:
    candidate_beside_live(policy, base)
    html = trainer_browser.get("/p/shop/models").content.decode()
    assert (f'action="{TAKE_OFF}"' in html, "Take the candidate off?" in html) == (True, False)

    html = trainer_browser.post(TAKE_OFF, follow=True).content.decode()

    assert "shop@candidate is refused" in html
    assert f'action="{TAKE_OFF}"' not in html
    assert not Alias.objects.filter(name=AliasName.CANDIDATE).exists()
    assert html.count(f'action="{CANDIDATE}"') == 2  # of the row, and of the undo
    trainer_browser.post(CANDIDATE)
    assert Alias.objects.get(name=AliasName.CANDIDATE).version.number == 1


def test_a_candidate_that_takes_calls_is_asked_about_before_it_is_taken_off(
    trainer_browser: Client, policy: Policy, base: Version
) -> None:
    candidate_beside_live(policy, base)
    Alias.objects.filter(name=AliasName.CANDIDATE).update(live_share=30)
    assert "Live answers its 30 % of the calls from then on" in trainer_browser.get("/p/shop/models").content.decode()

    html = trainer_browser.post(TAKE_OFF, follow=True).content.decode()

    assert "Live answers its 30 % of the calls." in html
    assert html.count(f'action="{CANDIDATE}"') == 1  # an undo would not bring the share back


def test_a_candidate_is_taken_off_by_those_who_may(
    viewer_browser: Client, stranger_browser: Client, trainer_browser: Client, policy: Policy, base: Version
) -> None:
    assert trainer_browser.post(TAKE_OFF).status_code == 404
    candidate_beside_live(policy, base)
    assert "Take off" in viewer_browser.get("/p/shop/models").content.decode()  # and whom to ask
    assert viewer_browser.post(TAKE_OFF).status_code == 403
    assert stranger_browser.post(TAKE_OFF).status_code == 404
    assert trainer_browser.get(TAKE_OFF).status_code == 405
    assert Alias.objects.filter(name=AliasName.CANDIDATE).exists()


def test_there_is_nothing_to_roll_back_to_at_first(trainer_browser: Client, policy: Policy) -> None:
    assert trainer_browser.post("/p/shop/models/roll-back").status_code == 404


def candidate_beside_live(policy: Policy, base: Version) -> Version:
    version = new_version(policy, base)
    Alias.objects.create(policy=policy, name=AliasName.CANDIDATE, version=version)
    return version


def share(policy: Policy) -> int:
    return Alias.objects.get(policy=policy, name=AliasName.CANDIDATE).live_share


def test_a_trainer_splits_lives_calls(trainer_browser: Client, policy: Policy, base: Version) -> None:
    candidate_beside_live(policy, base)
    assert 'name="candidate"' in trainer_browser.get("/p/shop/models").content.decode()

    assert trainer_browser.post("/p/shop/models/split", {"candidate": "30"})["Location"] == "/p/shop/models"

    assert share(policy) == 30
    html = trainer_browser.get("/p/shop/models").content.decode()
    assert "70 %" in html
    assert 'value="30"' in html
    trainer_browser.post("/p/shop/models/split", {"candidate": ""})
    assert share(policy) == 0
    assert AuditEvent.objects.filter(action="live.split", actor="trainer@example.org").count() == 2


def test_who_makes_a_version_live_hears_what_the_split_then_is(
    trainer_browser: Client, policy: Policy, base: Version
) -> None:
    candidate_beside_live(policy, base)
    second = VersionFactory.create(policy=policy, number=2, parent=base, adapter_path="/runs/2", state="ready")
    Deployment.objects.create(engine=Deployment.objects.get().engine, version=second, state=DeploymentState.LOADED)
    Alias.objects.filter(name=AliasName.CANDIDATE).update(live_share=30)
    html = trainer_browser.get("/p/shop/models").content.decode()
    assert "<code>shop</code>: version 0 answers 70 % of the calls, version 1 answers 30 %." in html
    assert "from then on version 2 answers 70 % of the calls, version 1 answers 30 %." in html
    assert "Make version 1 live in place of version 0? Calls are answered by it from then on." in html

    html = trainer_browser.post("/p/shop/models/2/promote", follow=True).content.decode()

    assert "shop@v2 is live. The split stays: version 2 answers 70 % of the calls, version 1 answers 30 %." in html
    Alias.objects.filter(name=AliasName.CANDIDATE).update(live_share=0)
    Alias.objects.filter(name=AliasName.PREVIOUS).update(live_share=20)
    html = trainer_browser.get("/p/shop/models").content.decode()
    asked = "Make version 0 live in place of version 2? The split stays: from then on version 0 answers 80 %"
    assert f"{asked} of the calls, version 2 answers 20 %." in html  # what live leaves is previous, with its share
    html = trainer_browser.post("/p/shop/models/roll-back", follow=True).content.decode()
    assert (
        "shop@v0 is live again. The split stays: version 0 answers 80 % of the calls, version 2 answers 20 %." in html
    )


@pytest.mark.parametrize(
    ("fields", "words", "status"),
    [
        ({"candidate": "100"}, "less than or equal to 99", 400),
        ({"candidate": "-1"}, "greater than or equal to 0", 400),
        ({"candidate": "many"}, "whole number", 400),
        ({"candidate": "50", "previous": "50"}, "live must keep at least 1", 400),
        ({"candidate": "60", "previous": "60"}, "live must keep at least 1", 400),
        ({"candidate": "1", "previous": "1"}, "no previous version", 409),
    ],
)
def test_a_bad_split_keeps_the_form_and_says_why(
    trainer_browser: Client, policy: Policy, base: Version, fields: dict[str, str], words: str, status: int
) -> None:
    candidate_beside_live(policy, base)

    answer = trainer_browser.post("/p/shop/models/split", fields)

    assert answer.status_code == status
    assert words in answer.content.decode()
    assert f'value="{fields["candidate"]}"' in answer.content.decode()
    assert share(policy) == 0


def test_one_version_alone_cannot_be_split(viewer_browser: Client, policy: Policy) -> None:
    html = viewer_browser.get("/p/shop/models").content.decode()

    assert "Only live has a version" in html
    assert 'id="split-form"' not in html


def test_a_viewer_sees_the_split_and_whom_to_ask(
    viewer_browser: Client, owner: User, policy: Policy, base: Version
) -> None:
    candidate_beside_live(policy, base)

    html = viewer_browser.get("/p/shop/models").content.decode()

    assert "Ask owner@example.org" in html
    assert ">Save split</button>" in html
    assert viewer_browser.post("/p/shop/models/split", {"candidate": "30"}).status_code == 403
    assert share(policy) == 0


def test_a_project_without_a_line_has_nothing_to_split(trainer_browser: Client, project: Project) -> None:
    assert trainer_browser.post("/p/shop/models/split", {"candidate": "0"}).status_code == 404
