"""Forms in a browser without JavaScript: what is asked first, and where one is led that was sent in vain."""

from collections.abc import AsyncIterator, Callable

import pytest
from asgiref.sync import sync_to_async
from playwright.async_api import Browser, expect

from apps.accounts.access import Caller
from apps.accounts.models import Project, User
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.services import create_queue
from apps.trajectories.datasets.models import Dataset
from apps.trajectories.models import Trajectory
from apps.trajectories.search.models import SavedView
from tests.browser.conftest import Child, Window
from tests.factories.accounts import PASSWORD
from tests.factories.datasets import DatasetFactory

pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]


@pytest.fixture
async def plain(browser: Browser, web: Child) -> AsyncIterator[Window]:
    context = await browser.new_context(java_script_enabled=False, viewport={"width": 1360, "height": 860})
    yield Window(page=await context.new_page(), base_url=web.environment["CLAW_BASE_URL"])
    await context.close()


async def test_a_page_asks_where_no_script_does(
    plain: Window, owner: User, project: Project, add_trajectory: Callable[..., Trajectory]
) -> None:
    row = await sync_to_async(add_trajectory)(title="a task")
    dataset = await sync_to_async(DatasetFactory.create)(project=project, name="mine")
    page = plain.page
    await plain.log_in(owner.email, PASSWORD)
    await page.goto(f"{plain.base_url}/p/shop/datasets/{dataset.pk}")
    await page.get_by_role("button", name="Delete dataset").click()
    await expect(page.locator("main")).to_contain_text("Delete mine? Its trajectories stay where they are.")
    await plain.shoot("asked-without-scripts")
    await page.get_by_role("link", name="No, go back").click()
    await expect(page.get_by_role("heading", name="mine")).to_be_visible()
    await page.get_by_role("button", name="Delete dataset").click()
    await page.get_by_role("button", name="Yes, go on").click()
    await expect(page.locator(".notice")).to_contain_text("mine is deleted")
    assert not await Dataset.objects.aexists()

    await page.goto(f"{plain.base_url}/p/shop/trajectories?q=reward:none")
    await page.locator(f"[name=id][value='{row.pk}']").check()
    await page.get_by_label("What to do with the rows you choose").select_option("delete")
    await page.get_by_role("button", name="Do it to the chosen rows").click()
    await expect(page.locator("main")).to_contain_text("Delete 1 chosen trajectory? It can be undone for")
    await page.get_by_role("button", name="Yes, go on").click()
    await expect(page.get_by_role("heading", name="Delete 1 chosen trajectory")).to_be_visible()


async def test_a_refused_form_shows_its_page_again(plain: Window, owner: User, project: Project) -> None:
    await SavedView.objects.acreate(project=project, name="taken")
    page = plain.page
    await plain.log_in(owner.email, PASSWORD)
    await page.goto(f"{plain.base_url}/p/shop/trajectories?q=reward:none")
    await page.get_by_text("Save this search").click()
    await page.get_by_label("Name").fill("taken")
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.locator("#view-fault")).to_have_text("There is a view 'taken' already: choose another name.")
    await expect(page.get_by_label("Search")).to_have_value("reward:none")
    await plain.shoot("saved-view-refused")
    await page.get_by_label("Name").fill("free")
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.locator(".notice")).to_contain_text("Saved as “free”")
    assert page.url.endswith("/p/shop/trajectories?q=reward%3Anone")

    await page.get_by_role("button", name="Delete the view taken").click()
    await SavedView.objects.filter(name="free").aupdate(name="taken")
    await page.get_by_text("Deleted views").click()
    await page.get_by_role("button", name="Restore “taken”").click()
    await expect(page.locator(".notice[data-tone=bad]")).to_contain_text("There is a view 'taken' already")
    assert page.url.endswith("/p/shop/trajectories?q=reward%3Anone")
    await plain.shoot("restore-refused")


async def test_a_review_that_is_not_whole_stands_there_again(
    plain: Window, mate: User, trainer: User, project: Project, add_trajectory: Callable[..., Trajectory]
) -> None:
    settings = {"name": "Tone", "field_names": ["reward", "comment"]}
    queue = await sync_to_async(create_queue)(caller=Caller(user=trainer), project=project, settings=settings)
    row = await sync_to_async(add_trajectory)(title="a task")
    await sync_to_async(add_trajectories)(caller=Caller(user=trainer), queue=queue, ids=[row.pk])
    page = plain.page
    await plain.log_in(mate.email, PASSWORD)
    await page.goto(f"{plain.base_url}/p/shop/review/{queue.pk}/work")
    await page.locator("[name=t-comment]").fill("half a thought")
    await page.locator("#submit").click()
    await expect(page.locator("#review-error")).to_contain_text("is not answered yet.")
    await expect(page.locator("[name=t-comment]")).to_have_value("half a thought")
    await plain.shoot("review-refused")
    await page.locator("[name=v-reward]").last.check()
    await page.locator("#submit").click()
    await expect(page.locator(".notice[data-tone=good]")).to_contain_text("Review saved")
