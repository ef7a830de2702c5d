"""Who answers an agent, set in a real browser: the split of a model line, and other people's models."""

import pytest
from asgiref.sync import sync_to_async
from playwright.async_api import expect

from apps.accounts.models import Project, User
from apps.registry.models import Alias, AliasName, Engine, Policy, Teacher, Version
from tests.browser.conftest import Window
from tests.factories.accounts import PASSWORD
from tests.factories.registry import AliasFactory, VersionFactory
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
