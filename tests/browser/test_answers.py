"""Pages that come as the answer to a form, error pages, and the REST API's own page: they look right and bar nobody."""

from typing import Literal

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from playwright.async_api import Browser, expect

from apps.accounts.access import Caller
from apps.accounts.models import Project, User
from apps.feedback.graders.services import VersionDraft, create_grader
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.models import QueueItem
from apps.feedback.queues.services import create_queue
from apps.feedback.queues.working import Submission, submit_review, take_review
from apps.trajectories.datasets.services import create_dataset
from tests.browser.conftest import ARTIFACTS, Child, Window
from tests.browser.showcase import Showcase
from tests.browser.test_looks import check_page, find_barriers, showcase
from tests.factories.accounts import PASSWORD

__all__ = ["showcase"]  # fixtures
pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

PRESS = """([address, fields]) => {
    const form = document.createElement('form');
    Object.assign(form, { method: 'post', action: address });
    const token = JSON.parse(document.body.getAttribute('hx-headers'))['X-CSRFToken'];
    for (const [name, value] of [...Object.entries(fields), ['csrfmiddlewaretoken', token]]) {
        const field = document.createElement('input');
        Object.assign(field, { type: 'hidden', name, value });
        form.append(field);
    }
    document.body.append(form);
    form.submit();
}"""


async def press(window: Window, address: str, **fields: str) -> int:
    """Send a form to an address, as a button without JavaScript does; returns the answer's status."""
    async with window.page.expect_navigation() as navigation:
        await window.page.evaluate(PRESS, [address, fields])
    answer = await navigation.value
    assert answer is not None
    return answer.status


@pytest.fixture
def ids(showcase: Showcase, project: Project, owner: User, mate: User) -> dict[str, str]:
    """What the forms are about: a step, a grader, a dataset, and an item that two people disagree on."""
    caller, trajectory = Caller(user=owner), showcase.trajectory
    queue = create_queue(caller=caller, project=project, settings={"name": "Tone", "n_reviews": 2})
    add_trajectories(caller=caller, queue=queue, ids=[trajectory.pk])
    for user, value in ((owner, 1), (mate, -1)):
        taken = take_review(caller=Caller(user=user), queue=queue)
        assert taken is not None
        answers = {"reward": {"value": value}}
        submit_review(caller=Caller(user=user), review=taken, said=Submission(answers=answers))
    draft = VersionDraft(settings={"url": "https://93.184.215.14/grade"})
    version, _ = create_grader(caller=caller, project=project, name="hook", kind="webhook", draft=draft)
    return {
        "trajectory": trajectory.pk,
        "step": trajectory.steps.get(index=1).pk,
        "queue": queue.pk,
        "item": QueueItem.objects.get(state="disputed").pk,
        "grader": version.grader_id,
        "dataset": create_dataset(project=project, caller=caller, name="Refunds").pk,
    }


REFUSED = {
    "new-queue": ("/p/shop/review/new", {"name": "", "query": "reward:x"}),
    "queue": ("/p/shop/review/{queue}/settings", {"name": "Tone", "n_reviews": "99", "hold_minutes": "1"}),
    "decision": ("/p/shop/review/{queue}/items/{item}/decide", {}),
    "schema": ("/p/shop/rewards/schema", {"0.name": "reward", "0.kind": "number", "trust": "nobody"}),
    "bulk": ("/p/shop/trajectories?q=reward:any", {"action": "reward", "scope": "all", "value": ""}),
    "token": ("/p/shop/rewards/tokens", {"agent": "shop-clerk", "origins": "not an origin"}),
    "grader": ("/p/shop/graders/new?kind=judge", {"name": "Not a name"}),
    "grader-version": ("/p/shop/graders/{grader}/versions", {"settings.url": "ftp://nowhere"}),
    "dry-run": ("/p/shop/graders/{grader}/1/dry-run", {"n": "many"}),
    "correction": ("/p/shop/trajectories/{trajectory}/steps/{step}/correct", {"message": ""}),
    "replay": ("/p/shop/playground/{step}", {"temperature": "9", "max_tokens": "5"}),
    "run": ("/p/shop/runs/new", {"name": "x", "recipe.n_steps": "-1"}),
    "agent": ("/p/shop/agents", {"name": ""}),
    "agent-key": ("/p/shop/agents/shop-clerk/keys", {"scope": "everything"}),
    "person": ("/p/shop/people", {"email": "nobody"}),
    "provider": ("/p/shop/providers/add", {"base_url": "nowhere"}),
    "capture": ("/p/shop/agents/shop-clerk/capture", {"mode": "redact", "own_patterns": "("}),
    "limits": ("/p/shop/agents/shop-clerk/limits/project", {"requests_per_minute": "-1"}),
    "new-dataset": ("/p/shop/datasets", {"name": ""}),
    "dataset": ("/p/shop/datasets/{dataset}/add", {"query": "reward:x"}),
    "export": ("/p/shop/exports", {"query": "reward:x"}),
    "import": ("/p/shop/imports", {"dataset": "none"}),
    "password": ("/password", {"old_password": "x", "new_password1": "1", "new_password2": "2"}),
}


async def test_forms_that_were_refused_look_right(window: Window, ids: dict[str, str], owner: User) -> None:
    await window.log_in(owner.email, PASSWORD)
    for name, (address, fields) in REFUSED.items():
        await window.open("/p/shop/people")
        status = await press(window, address.format(**ids), **fields)
        assert 200 <= status < 500, name
        assert await window.page.locator("[role=alert], .notice, .error-page").count() > 0, name
        await check_page(window, f"refused-{name}")
    forgive(window, "40")


async def test_what_is_shown_once_looks_right(window: Window, ids: dict[str, str], owner: User) -> None:
    await window.log_in(owner.email, PASSWORD)
    await window.open(f"/p/shop/graders/{ids['grader']}")
    assert await press(window, f"/p/shop/graders/{ids['grader']}/secret") == 200
    await expect(window.page.get_by_text("clawhook-").first).to_be_visible()
    await check_page(window, "secret")
    await window.open("/p/shop/review/new")
    assert await press(window, "/p/shop/review/new", name="Late ones", query="label:none", count="1") == 200
    await check_page(window, "queue-counted")


async def test_error_pages_look_right(window: Window, ids: dict[str, str], owner: User, viewer: User) -> None:
    page = window.page
    await page.goto(f"{window.base_url}/login")
    await page.get_by_label("E-mail").fill(owner.email)
    await page.get_by_label("Password").fill("wrong")
    await page.get_by_role("button", name="Log in").click()
    await page.get_by_role("alert").wait_for()
    await check_page(window, "wrong-password")
    await window.log_in(viewer.email, PASSWORD)
    addresses = {400: "/p/shop/trajectories?state=sleeping", 403: "/p/shop/review/new", 404: "/p/shop/runs/run_0"}
    for status, address in addresses.items():
        await check_error(window, address, status)
    await sync_to_async(rename)("feedback_scoreschema", "gone")  # so that whoever reads it meets a fault
    try:
        await check_error(window, "/p/shop/rewards", 500)
    finally:
        await sync_to_async(rename)("gone", "feedback_scoreschema")
    await window.open("/p/shop/people")
    await page.context.clear_cookies()
    assert await press(window, "/p/shop/people", email="x") == 403
    await expect(page.get_by_text("The form was open for too long")).to_be_visible()
    await check_page(window, "error-csrf")
    forgive(window, "40", "500")


async def check_error(window: Window, address: str, status: int) -> None:
    answer = await window.page.goto(window.base_url + address)
    assert answer is not None
    assert answer.status == status
    await expect(window.page.get_by_text("Request id req_")).to_be_visible()
    await check_page(window, f"error-{status}")


def rename(one: str, other: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {one} RENAME TO {other}")


def forgive(window: Window, *statuses: str) -> None:
    """Take out what the browser says of each answer that is an error."""
    said = [f"responded with a status of {status}" for status in statuses]
    window.complaints[:] = [one for one in window.complaints if not any(words in one for words in said)]


@pytest.mark.parametrize("colours", ["light", "dark"])
async def test_the_page_of_the_rest_api_bars_nobody(window: Window, colours: Literal["light", "dark"]) -> None:
    page = window.page
    await page.emulate_media(color_scheme=colours)
    await page.goto(f"{window.base_url}/api/docs")
    await page.locator(".opblock-tag").first.click()
    await page.locator(".opblock-summary-control").first.click()
    await page.locator(".opblock.is-open .opblock-body").first.wait_for()
    assert (await page.locator("html.dark-mode").count() == 1) == (colours == "dark")
    await window.shoot(f"api-docs-{colours}")
    assert await find_barriers(window, impacts=("serious", "critical")) == []
    chosen = {"light": "dark", "dark": "light"}[colours]  # in the console: it comes before the system's
    await page.context.add_cookies([{"name": "theme", "value": chosen, "url": window.base_url}])
    await page.reload()
    await page.locator(".opblock-tag").first.wait_for()
    assert (await page.locator("html.dark-mode").count() == 1) == (chosen == "dark")


async def test_the_page_of_the_rest_api_leads_on_without_javascript(browser: Browser, web: Child) -> None:
    context = await browser.new_context(java_script_enabled=False, color_scheme="dark")
    page = await context.new_page()
    await page.goto(f"{web.environment['CLAW_BASE_URL']}/api/docs")
    link = page.get_by_role("link", name="/api/schema")
    await expect(link).to_be_visible()
    await page.screenshot(path=ARTIFACTS / "api-docs-nojs.png")
    answer = await page.request.get(f"{web.environment['CLAW_BASE_URL']}{await link.get_attribute('href')}")
    assert answer.status == 200
    await context.close()
