"""A step is played again before somebody's eyes: that it is asked, since when, and how to stop waiting."""

from collections.abc import Iterator

import pytest
from django.utils import timezone
from playwright.async_api import expect

from apps.accounts.models import User
from apps.registry.models import Version
from apps.trajectories.models import Step
from tests.browser.conftest import Window
from tests.browser.test_looks import check_page
from tests.factories.accounts import PASSWORD
from tests.factories.registry import EngineFactory
from tests.fakes.engine import FakeEngine

pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]


@pytest.fixture
def engine(base: Version) -> Iterator[FakeEngine]:
    """The base, on an engine that thinks for a while."""
    with FakeEngine() as fake:
        EngineFactory.create(base_url=fake.url, base_model=base.policy.base_model, last_seen_at=timezone.now())
        fake.script.first_pause_s = 30
        yield fake


async def test_one_sees_that_it_is_asked_and_can_stop_waiting(
    window: Window, engine: FakeEngine, step: Step, mate: User
) -> None:
    page = window.page
    await window.log_in(mate.email, PASSWORD)
    await window.open(f"/p/shop/playground/{step.pk}")
    waiting, play = page.locator("#answering"), page.get_by_role("button", name="Play")
    await expect(waiting).to_be_hidden()
    await play.click()
    await expect(waiting).to_contain_text("Answering…")
    await expect(waiting.locator("[data-elapsed]")).to_have_text("2")
    await expect(play).to_be_disabled()
    await check_page(window, "playground-answering")
    await waiting.get_by_role("button", name="Cancel").click()
    await expect(waiting).to_be_hidden()
    engine.script.first_pause_s = 0
    await play.click()
    await expect(page.get_by_role("heading", name="v0 says")).to_be_visible()
    await expect(waiting).to_be_hidden()
    await check_page(window, "playground-answered")
    await page.get_by_label("Temperature").fill("")
    await play.click()
    await expect(page.locator("#played [role=alert]")).to_contain_text("Temperature and tokens are numbers")
    assert len(engine.calls) == 2
    told = " ".join(window.complaints)  # htmx says in the browser's console what was cancelled and what was refused
    assert [words in told for words in ("htmx:sendAbort", "status of 400")] == [True, True]
    window.complaints.clear()


async def test_who_is_logged_out_meanwhile_logs_in_and_is_back(
    window: Window, engine: FakeEngine, step: Step, mate: User
) -> None:
    page, address = window.page, f"/p/shop/playground/{step.pk}"
    await window.log_in(mate.email, PASSWORD)
    await window.open(address)
    await page.context.clear_cookies(name="sessionid")
    await page.get_by_role("button", name="Play").click()
    await page.wait_for_url(f"**/login?next={address}")
    assert engine.calls == []
    window.complaints.clear()
