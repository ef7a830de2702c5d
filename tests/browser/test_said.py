"""Saying more of a step than a reward, in a real browser: it is corrected, played again, compared with another try."""

from collections.abc import Callable, Iterator

import pytest
from django.utils import timezone
from playwright.async_api import expect

from apps.accounts.models import User
from apps.feedback.preferences.models import Preference
from apps.registry.models import EngineState, Version
from apps.trajectories.models import Trajectory
from tests.browser.conftest import Window
from tests.browser.test_looks import check_page
from tests.factories.accounts import PASSWORD
from tests.factories.registry import EngineFactory
from tests.fakes.engine import FakeEngine

pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]


@pytest.fixture
def served(base: Version) -> Iterator[FakeEngine]:
    """The base, on an engine that is up."""
    with FakeEngine() as engine:
        line = base.policy.base_model
        EngineFactory.create(base_url=engine.url, base_model=line, state=EngineState.UP, last_seen_at=timezone.now())
        yield engine


@pytest.fixture
def tries(add_trajectory: Callable[..., Trajectory]) -> list[Trajectory]:
    """Two tries at one task."""
    return [add_trajectory(title=text, group="g", step={"text": text}) for text in ("It is late.", "No idea.")]


async def test_a_step_is_corrected_played_again_and_compared(
    window: Window, mate: User, tries: list[Trajectory], served: FakeEngine
) -> None:
    page = window.page
    served.script.pieces = ["It comes ", "on Friday."]
    await window.log_in(mate.email, PASSWORD)
    await window.open(f"/p/shop/trajectories/{tries[0].pk}")

    await page.get_by_role("link", name="Correct step 0").click()
    await expect(page.get_by_label("The answer")).to_have_value("It is late.")
    await check_page(window, "correct")
    await page.get_by_role("button", name="Save correction").click()
    await expect(page.get_by_role("alert")).to_contain_text("This is what the step said")
    await page.get_by_label("The answer").fill("It comes on Friday, I am sorry.")
    await page.get_by_role("button", name="Save correction").click()
    await expect(page.locator("#said-panel")).to_contain_text("It comes on Friday, I am sorry.")

    await page.get_by_role("link", name="Replay step 0").click()
    await page.get_by_label("v0").check()
    await page.get_by_role("button", name="Play").click()
    await expect(page.get_by_role("region", name="v0 says")).to_contain_text("It comes on Friday.")
    await check_page(window, "replay")
    await page.get_by_role("button", name="Better than what was said").click()
    await expect(page.get_by_text("Kept: version 0 is better")).to_be_visible()
    kinds = {row.kind async for row in Preference.objects.standing().filter(author=mate)}
    assert kinds == {"correction", "comparison"}

    await page.get_by_role("link", name="Compare", exact=True).click()
    await page.get_by_label("With this trajectory").fill(tries[1].pk)
    await page.get_by_role("button", name="Compare").click()
    await expect(page.get_by_role("article", name="Left, step 0")).to_contain_text("It is late.")
    await expect(page.get_by_role("article", name="Right, step 0")).to_contain_text("No idea.")
    await check_page(window, "compare")
    window.complaints[:] = [one for one in window.complaints if "400" not in one]  # the correction that was none
