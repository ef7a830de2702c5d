"""Each page of the table of addresses, wide and narrow, by day and by night: none is wider than its window, and all its
words stand out from their ground."""

import pytest
from playwright.async_api import Page

from apps.accounts.models import ApiKey, Project, User
from tests.apps.console.places import fill_places, list_places
from tests.browser.conftest import ROOT, Window
from tests.browser.showcase import Showcase
from tests.browser.test_looks import showcase
from tests.factories.accounts import PASSWORD

__all__ = ["showcase"]  # a fixture
pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

NO_PAGE = 405
AXE = (ROOT / "node_modules" / "axe-core" / "axe.min.js").read_text()
SPILL = """() => {
    const { scrollWidth, clientWidth } = document.documentElement;
    if (scrollWidth <= clientWidth) return null;
    const isWide = (one) => one.getBoundingClientRect().right > clientWidth;
    const wide = [...document.querySelectorAll('main *')].filter(isWide);
    return `${scrollWidth} of ${clientWidth}: ${wide.at(-1)?.outerHTML.slice(0, 120)}`;
}"""
FAINT = """async () => {
    const { violations } = await axe.run({ runOnly: { type: 'rule', values: ['color-contrast'] } });
    return violations.flatMap(({ nodes }) => nodes.map((node) => node.html.slice(0, 120)));
}"""


@pytest.fixture
def places(showcase: Showcase, project: Project, owner: User) -> dict[str, str]:
    key = ApiKey.objects.filter(agent=showcase.trajectory.agent)[0]
    made = fill_places(project=project, owner=owner, trajectory=showcase.trajectory, run_id=showcase.run.pk, key=key)
    return list_places(made)


async def look(page: Page) -> list[str]:
    """Return what is wrong with the page as it stands, by look."""
    await page.evaluate(AXE)
    faults = []
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        for width in (360, 1360):
            await page.set_viewport_size({"width": width, "height": 860})
            if spill := await page.evaluate(SPILL):
                faults.append(f"{scheme}, {width}: {spill}")
        faults += [f"{scheme}: faint {html}" for html in await page.evaluate(FAINT)]
    return faults


async def test_no_page_is_wider_than_its_window_and_all_words_stand_out(
    window: Window, places: dict[str, str], owner: User
) -> None:
    page = window.page
    await window.log_in(owner.email, PASSWORD)
    faults, n_seen = {}, 0
    for name, address in places.items():
        answer = await page.request.get(window.base_url + address, max_redirects=0)
        if answer.status in {NO_PAGE, 302}:
            continue
        assert answer.status == 200, (name, answer.status)
        await page.goto(window.base_url + address)
        n_seen += 1
        if found := await look(page):
            faults[name] = found
    assert faults == {}
    assert n_seen > 35
