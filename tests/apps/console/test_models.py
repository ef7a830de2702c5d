"""The model line: versions, promoting, rolling back."""

from django.test import Client

from apps.accounts.models import Agent, AuditEvent, Project
from apps.registry.models import Alias, AliasName, Deployment, DeploymentState, Policy, Version, VersionState
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
    assert AuditEvent.objects.filter(actor="trainer@example.org").count() == 2


def test_an_unverified_version_cannot_go_live(trainer_browser: Client, policy: Policy, base: Version) -> None:
    new_version(policy, base, state=VersionState.PUBLISHED)
    assert trainer_browser.post("/p/shop/models/1/promote").status_code == 409
    assert trainer_browser.post("/p/shop/models/9/promote").status_code == 404
    assert live(policy) == 0


def test_there_is_nothing_to_roll_back_to_at_first(trainer_browser: Client, policy: Policy) -> None:
    assert trainer_browser.post("/p/shop/models/roll-back").status_code == 404
