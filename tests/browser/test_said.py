"""Saying more of a step than a reward, in a real browser: it is corrected, played again, compared with another try."""

from collections.abc import Callable, Iterator

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone
from playwright.async_api import expect

from apps.accounts.access import Caller
from apps.accounts.models import User
from apps.feedback.preferences.models import Preference
from apps.feedback.services import add_label
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
    await expect(page.get_by_label("v0")).to_be_checked()  # the only one there is
    await page.get_by_role("button", name="Play").click()
    await expect(page.get_by_role("region", name="v0 says")).to_contain_text("It comes on Friday.")
    await check_page(window, "replay")
    await page.get_by_role("button", name="Better than what was said").click()
    await expect(page.get_by_text("Kept: what version 0 said now is better")).to_be_visible()
    kinds = {row.kind async for row in Preference.objects.standing().filter(author=mate)}
    assert kinds == {"correction", "comparison"}
    await page.get_by_role("link", name="Back to the step").click()
    await expect(page.locator("#said-panel")).to_contain_text("What version 0 said, better than what the step said")

    await page.get_by_role("link", name="Compare", exact=True).click()
    await page.get_by_label("or an id").fill("traj_nonsense")
    await page.get_by_role("button", name="Compare").click()
    await expect(page.get_by_role("alert")).to_contain_text("no such trajectory")
    await page.get_by_role("link", name=tries[1].title).click()
    await expect(page.get_by_role("article", name="Left, step 0")).to_contain_text("It is late.")
    await expect(page.get_by_role("article", name="Right, step 0")).to_contain_text("No idea.")
    await check_page(window, "compare")
    await page.get_by_role("button", name="Left is better").click()
    await expect(page.get_by_text("Kept: the left one is better")).to_be_visible()
    window.complaints[:] = [one for one in window.complaints if "400" not in one and "404" not in one]  # none is meant


async def test_words_that_somebody_spoke_of_are_marked(window: Window, mate: User, tries: list[Trajectory]) -> None:
    page = window.page
    step = await tries[0].steps.aget()
    label = await sync_to_async(add_label)(
        caller=Caller(user=mate),
        trajectory=tries[0],
        step=step,
        span=(3, 10),
        field="comment",
        value=None,
        text="not true",
    )
    await window.log_in(mate.email, PASSWORD)
    await window.open(f"/p/shop/trajectories/{tries[0].pk}")
    mark = page.locator(".said-mark")
    await expect(mark).to_have_text("is late")
    await expect(mark).to_have_attribute("title", "Comment. not true")
    await mark.click()
    await expect(page.locator(f"#{label.pk}")).to_be_in_viewport()
    await page.locator(f"#{label.pk}").get_by_role("button", name="Take back").click()
    await expect(mark).to_have_count(0)

    await page.locator(".message.answer .text p").first.select_text()
    offer = page.get_by_role("button", name="Say something of these words")
    await offer.click()
    await expect(page.get_by_label("Only these words")).to_have_value("It is late.")
    await expect(offer).to_have_count(0)
    await expect(page.locator("#say-form .option kbd").first).to_be_hidden()


async def test_what_is_half_said_outlives_a_reload(window: Window, mate: User, tries: list[Trajectory]) -> None:
    page, restored = window.page, window.page.get_by_text("Draft restored")
    address = f"/p/shop/trajectories/{tries[0].pk}"
    words, comment = page.locator("#say-words"), page.locator("#say-form [name=t-comment]")
    await window.log_in(mate.email, PASSWORD)
    await window.open(address)
    await expect(restored).to_have_count(0)
    await page.locator("#say-box summary").first.click()
    await page.locator("#say-step").select_option(label="step 0")
    await words.fill("is late")
    await comment.fill("half a thou")
    await window.open(address)
    await expect(restored).to_be_visible()
    await expect(words).to_have_value("is late")
    await expect(comment).to_have_value("half a thou")
    await window.shoot("draft-restored")
    await window.open(f"/p/shop/trajectories/{tries[1].pk}")
    await expect(comment).to_have_value("")
    await window.open(address)
    await comment.fill("half a thought")
    await page.get_by_role("button", name="Say it").click()
    await expect(page.locator("#said-panel .labels")).to_contain_text("half a thought")
    await expect(comment).to_have_value("")
    await window.open(address)
    await expect(page.locator("#said-panel .labels")).to_contain_text("half a thought")
    await expect(comment).to_have_value("")

    answer = page.get_by_label("The answer")
    correct = f"{address}/steps/{await sync_to_async(lambda: tries[0].steps.get().pk)()}/correct"
    await window.open(correct)
    await answer.fill("It comes on Fri")
    await window.open(correct)
    await expect(answer).to_have_value("It comes on Fri")
    await page.get_by_role("link", name="Cancel").click()
    await window.open(correct)
    await expect(answer).to_have_value("It is late.")
    await answer.fill("It comes on Friday.")
    await page.get_by_role("button", name="Save correction").click()
    await page.wait_for_url("**/trajectories/*step-0")
    await window.open(correct)
    await expect(answer).to_have_value("It is late.")
