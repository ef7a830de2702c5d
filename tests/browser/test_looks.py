"""Every page by day, by night and on a telephone: nothing complains, nothing spills, everything has a name.

The pictures stay in test-artifacts/. The README shows one of them:
`cp test-artifacts/tokens-light.png docs/screenshots/console.png`.
"""

from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
from asgiref.sync import sync_to_async
from playwright.async_api import Browser

from apps.accounts.access import Caller
from apps.accounts.models import ApiKey, Project, User
from apps.core.ids import new_id
from apps.feedback.bulk import ACTIONS
from apps.trajectories.bulk.models import BulkJob
from apps.trajectories.bulk.running import run_job
from apps.trajectories.bulk.services import start_job
from apps.trajectories.models import Exchange, Trajectory
from apps.trajectories.recorder import fold_pending
from tests.browser.conftest import ROOT, Child, Window
from tests.browser.showcase import TOKENS, TOPS, Showcase, build_showcase
from tests.factories.accounts import PASSWORD
from tests.factories.trajectories import ExchangeFactory
from tests.fakes.adapter_engine import FakeEngine, serve_engine

pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

LOOKS = {"light": (1440, 900, "light"), "dark": (1360, 860, "dark"), "phone": (360, 860, "light")}
CLEAN = {"spill": 0, "h1": 1, "main": 1, "twins": []}
BARRIERS = """async () => {
    const runOnly = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
    const { violations } = await axe.run({ runOnly });
    return violations.map(({ id, impact, nodes }) => ({ id, impact, html: nodes[0].html.slice(0, 160) }));
}"""
OUTLINE = """() => ({
    spill: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    h1: document.querySelectorAll('h1').length,
    main: document.querySelectorAll('main').length,
    twins: [...document.querySelectorAll('[id]')].map((one) => one.id)
        .filter((id, place, all) => all.indexOf(id) !== place),
})"""


IMPACTS = ("minor", "moderate", "serious", "critical")


async def find_barriers(window: Window, *, impacts: Sequence[str] = IMPACTS) -> list[str]:
    """Return what axe-core has to say against the page (WCAG 2.2 AA and best practice)."""
    await window.page.evaluate((ROOT / "node_modules" / "axe-core" / "axe.min.js").read_text())
    found = await window.page.evaluate(BARRIERS)
    return [f"{one['id']}: {one['html']}" for one in found if one["impact"] in impacts]


async def check_page(window: Window, name: str) -> None:
    """The page as it is stands right on a desk and on a telephone, and nothing bars anybody from it."""
    for width in (1360, 360):
        await window.page.set_viewport_size({"width": width, "height": 860})
        assert await window.page.evaluate(OUTLINE) == CLEAN, (name, width)
        await window.shoot(f"{name}-{width}", full_page=True)
    assert await find_barriers(window) == [], name
    await window.page.set_viewport_size({"width": 1360, "height": 860})


@pytest.fixture
def showcase(transactional_db: None, project: Project, owner: User) -> Iterator[Showcase]:
    with serve_engine(FakeEngine(texts=TOKENS, tops=TOPS)) as engine:
        built = build_showcase(project=project, owner=owner, engine_url=engine.base_url)
        engine.adapters[built.version.engine_name] = built.version.adapter_path
        yield built


@pytest.fixture(params=sorted(LOOKS))
async def dressed(request: pytest.FixtureRequest, browser: Browser, web: Child) -> AsyncIterator[tuple[str, Window]]:
    """A window of one look, and its name."""
    width, height, scheme = LOOKS[request.param]
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
    )
    page = await context.new_page()
    window = Window(page=page, base_url=web.environment["CLAW_BASE_URL"])
    page.on("console", window.hear)
    page.on("pageerror", lambda error: window.complaints.append(str(error)))
    yield request.param, window
    await context.close()
    assert window.complaints == []


async def test_pages_look_right(dressed: tuple[str, Window], showcase: Showcase, owner: User) -> None:
    look, window = dressed
    trajectory = f"/p/shop/trajectories/{showcase.trajectory.id}"
    pages = {
        "home": "/p/shop/",
        "agents": "/p/shop/agents",
        "agent": "/p/shop/agents/shop-clerk",
        "trajectories": "/p/shop/trajectories",
        "trajectory": trajectory,
        "tokens": f"{trajectory}?step=1&view=tokens",
        "entropy": f"{trajectory}?step=1&view=entropy",
        "runs": "/p/shop/runs",
        "run": f"/p/shop/runs/{showcase.run.id}",
        "batch": f"/p/shop/runs/{showcase.run.id}/batches/3",
        "new-run": "/p/shop/runs/new",
        "new-run-in-another-way": "/p/shop/runs/new?recipe.algorithm=hindsight",
        "models": "/p/shop/models",
    }
    await window.log_in(owner.email, PASSWORD)
    await window.shoot(f"projects-{look}")
    for name, address in pages.items():
        await window.open(address)
        await window.page.wait_for_timeout(300)
        await window.shoot(f"{name}-{look}", full_page=name in {"run", "new-run", "trajectory"})
        outline = await window.page.evaluate(OUTLINE)
        assert outline == CLEAN, name
        await window.page.evaluate("scrollTo(0, 1e6)")  # there a bar that stays in sight covers nothing
        assert await find_barriers(window) == [], name


@pytest.fixture
def poison(key: ApiKey) -> Exchange:
    """A call that the recorder has set aside."""
    call: Exchange = ExchangeFactory.create(key=key)
    Exchange.objects.filter(pk=call.pk).update(request=b"no JSON")
    fold_pending()
    return call


@pytest.fixture
def job(project: Project, owner: User, showcase: Showcase) -> BulkJob:
    """A job that is done, but for a trajectory that there is not."""
    ids = [*Trajectory.objects.values_list("pk", flat=True)[:2], new_id("traj")]
    settings, caller = {"tag": "seen"}, Caller(user=owner)
    job = start_job(caller=caller, project=project, action=ACTIONS["tag"], settings=settings, ids=ids)
    run_job(job.pk, actions=ACTIONS)
    return job


async def test_pages_off_the_main_ways_look_right(
    window: Window, showcase: Showcase, owner: User, poison: Exchange, job: BulkJob
) -> None:
    page = window.page
    await page.goto(f"{window.base_url}/login")
    await check_page(window, "login")
    await window.log_in(owner.email, PASSWORD)
    trajectory = f"/p/shop/trajectories/{showcase.trajectory.id}"
    pages = {
        "projects": "/",
        "password": "/password",
        "people": "/p/shop/people",
        "policies": "/p/shop/agents/shop-clerk/policies",
        "raw": f"{trajectory}?step=1&view=raw",
        "inbox": "/p/shop/inbox",
        "call": f"/p/shop/inbox/{poison.pk}",
        "jobs": "/p/shop/jobs",
        "job": f"/p/shop/jobs/{job.pk}",
        "teachers": "/p/shop/teachers",
        "missing": "/p/shop/trajectories/nothing",
    }
    for name, address in pages.items():
        await page.goto(window.base_url + address)
        await check_page(window, name)
    await page.goto(f"{window.base_url}/p/shop/trajectories")
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await page.locator("#bulk").wait_for()
    await check_page(window, "chosen-rows")
    await page.keyboard.press("?")
    await page.get_by_role("dialog").wait_for()
    await check_page(window, "keys")
    await page.goto(f"{window.base_url}/p/shop/agents/shop-clerk")
    await page.get_by_role("button", name="Create key").click()
    await page.wait_for_url("**/new")
    await check_page(window, "new-key")
    window.complaints[:] = [one for one in window.complaints if "404" not in one]


async def test_pages_can_be_read_without_javascript(
    browser: Browser, web: Child, showcase: Showcase, owner: User
) -> None:
    context = await browser.new_context(java_script_enabled=False, viewport={"width": 1360, "height": 860})
    page = await context.new_page()
    window = Window(page=page, base_url=web.environment["CLAW_BASE_URL"])
    await window.log_in(owner.email, PASSWORD)
    await page.goto(f"{window.base_url}/p/shop/runs/{showcase.run.id}")
    assert await page.locator("#chart-loss polyline").get_attribute("points")
    await page.goto(f"{window.base_url}/p/shop/trajectories/{showcase.trajectory.id}?step=1&view=tokens")
    assert await page.locator("#step-1 .tok").count() > 20
    await page.locator("#judge").get_by_role("button", name="Bad").click()
    await page.wait_for_load_state()
    assert "Trajectory rewarded −1.00" in await page.locator(".notice").inner_text()
    await sync_to_async(showcase.trajectory.refresh_from_db)()
    assert showcase.trajectory.reward == -1.0
    await context.close()
