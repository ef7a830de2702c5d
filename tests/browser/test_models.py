"""Who answers an agent, set in a real browser: the split of a model line, and other people's models."""

import pytest
from asgiref.sync import sync_to_async
from playwright.async_api import Dialog, expect

from apps.accounts.models import Project, User
from apps.registry.models import Alias, AliasName, Deployment, DeploymentState, Engine, Policy, Teacher, Version
from tests.browser.conftest import Window
from tests.factories.accounts import PASSWORD
from tests.factories.registry import AliasFactory, EngineFactory, VersionFactory
from tests.fakes.adapter_engine import FakeEngine, serve_engine

pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]

SECRET = "sk-0123456789abcdef"


@sync_to_async
def add_candidate(policy: Policy, base: Version) -> None:
    version = VersionFactory.create(policy=policy, number=1, parent=base, adapter_path="/runs/1")
    AliasFactory.create(version=version, name=AliasName.CANDIDATE)


@sync_to_async
def read_share() -> int:
    return Alias.objects.get(name=AliasName.CANDIDATE).live_share


async def test_a_trainer_splits_calls_and_hears_what_is_wrong(
    window: Window, trainer: User, policy: Policy, base: Version
) -> None:
    await add_candidate(policy, base)
    await window.log_in(trainer.email, PASSWORD)
    await window.open("/p/shop/models")
    page = window.page

    await page.locator("#share-candidate").fill("25")
    await page.get_by_role("button", name="Save split").click()

    await expect(page.locator("#split-form output")).to_have_text("75 %")
    await expect(page.locator("#share-candidate")).to_have_value("25")
    assert await read_share() == 25
    await page.locator("#share-candidate").evaluate("(field) => { field.max = ''; field.value = '100'; }")
    await page.get_by_role("button", name="Save split").click()
    await expect(page.locator("#split-form [role=alert]")).to_contain_text("less than or equal to 99")
    assert await read_share() == 25
    window.complaints.clear()  # Chromium notes the answer 400


@sync_to_async
def add_trained(policy: Policy, base: Version) -> None:
    version = VersionFactory.create(
        policy=policy,
        number=1,
        parent=base,
        adapter_path="/runs/1",
        sha256="ef7b2c62" * 8,
        lineage={"run_id": "run_01m8w14wqfez2rx3w4t6zpbxvg", "step": 12},
        verification={"mean_abs_diff": 0.06048, "max_abs_diff": 0.2384},
    )
    engine = EngineFactory.create(base_model=policy.base_model)
    Deployment.objects.create(engine=engine, version=version, state=DeploymentState.LOADED)
    AliasFactory.create(version=version, name=AliasName.CANDIDATE)


async def test_making_a_version_live_is_in_sight_and_asked_once_more(
    window: Window, trainer: User, policy: Policy, base: Version
) -> None:
    await add_trained(policy, base)
    await window.log_in(trainer.email, PASSWORD)
    page = window.page
    asked: list[str] = []

    async def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        await (dialog.accept() if len(asked) > 1 else dialog.dismiss())

    page.on("dialog", answer)
    button = page.get_by_role("button", name="Make live")
    for width in (1280, 400, 360):
        await page.set_viewport_size({"width": width, "height": 900})
        await window.open("/p/shop/models")
        box = await button.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width - 12
        assert await page.locator(".table-wrap").first.evaluate("(one) => one.scrollWidth - one.clientWidth") <= 0
        await window.shoot(f"models-{width}", full_page=True)
    await button.click()
    await button.click()
    await expect(page.get_by_text("is live. Calls in flight")).to_be_visible()
    assert asked == ["Make version 1 live in place of version 0? Calls are answered by it from then on."] * 2


async def test_an_owner_brings_a_teacher_and_sends_it_away(window: Window, owner: User, project: Project) -> None:
    with serve_engine(FakeEngine()) as server:
        await window.log_in(owner.email, PASSWORD)
        await window.open("/p/shop/teachers")
        page = window.page
        await page.locator("#provider-url").fill(f"{server.base_url}/v1")
        await page.locator("#provider-credential").fill(SECRET)
        await page.get_by_role("button", name="Add provider").click()
        await expect(page.locator("#providers")).to_contain_text("…cdef")
        await expect(page.locator("#providers .badge")).to_have_text("up")
        assert SECRET not in await page.content()

        await page.locator("#teacher-name").fill("big-one")
        await page.locator("#teacher-model").fill("vendor/big-1")
        await page.get_by_role("button", name="Add teacher").click()
        await expect(page.locator("#teachers")).to_contain_text("vendor/big-1")
        await page.get_by_role("button", name="Test", exact=True).click()
        await expect(page.get_by_text(f"{server.base_url}/v1 answers.")).to_be_visible()

    page.on("dialog", lambda dialog: dialog.accept())
    await page.locator("#teachers").get_by_role("button", name="Remove").click()
    await expect(page.get_by_text("No teacher yet")).to_be_visible()
    await page.locator("#providers").get_by_role("button", name="Remove").click()
    await expect(page.get_by_text("No provider yet")).to_be_visible()
    assert not await sync_to_async(Engine.objects.exists)()
    assert not await sync_to_async(Teacher.objects.exists)()
