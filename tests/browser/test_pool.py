"""The list of trajectories in a real browser: rows are chosen by key, stay chosen and stay in place when news comes."""

from collections.abc import Callable

import pytest
from asgiref.sync import sync_to_async
from playwright.async_api import Dialog, expect

from apps.accounts.models import ApiKey, User
from apps.trajectories.models import Trajectory
from apps.trajectories.recorder import fold_pending
from tests.browser.conftest import Window
from tests.factories.accounts import PASSWORD
from tests.factories.trajectories import ExchangeFactory

pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]


async def test_rows_are_chosen_by_key_and_keep_their_place(
    window: Window, owner: User, key: ApiKey, add_trajectory: Callable[..., Trajectory]
) -> None:
    for number in range(3):
        await sync_to_async(add_trajectory)(title=f"row {number}")
    await window.log_in(owner.email, PASSWORD)
    await window.open("/p/shop/trajectories")
    page = window.page
    bar = page.locator("#bulk")
    await expect(bar).to_be_hidden()
    for press in ("j", "x", "j", "Shift+X"):
        await page.keyboard.press(press)
    await expect(page.locator("#bulk-count")).to_have_text("2 chosen")
    await expect(page.locator("[data-for=reward]")).to_be_visible()
    await expect(page.locator("[data-for=channel]")).to_be_hidden()

    focused = page.locator("#rows tr:focus-within")
    before = await focused.bounding_box()
    await sync_to_async(ExchangeFactory.create)(key=key)
    await sync_to_async(fold_pending)()
    await expect(page.locator("#new-pill")).to_have_text("1 new")
    assert await focused.bounding_box() == before
    await expect(page.locator("#bulk-count")).to_have_text("2 chosen")

    await page.locator("#bulk-value").fill("0.5")
    await page.get_by_role("button", name="Do it to the chosen rows").click()
    await page.wait_for_url("**/jobs/job_*")
    await expect(page.locator("#job-progress")).to_contain_text("The 2 chosen rows")
    assert window.complaints == []


async def test_box_and_selects_tell_the_same_search(
    window: Window, owner: User, add_trajectory: Callable[..., Trajectory]
) -> None:
    await sync_to_async(add_trajectory)(title="asleep", state="open", completed_at=None)
    await sync_to_async(add_trajectory)(title="awake")
    await window.log_in(owner.email, PASSWORD)
    await window.open("/p/shop/trajectories?q=is:open")
    page, box, state = window.page, window.page.get_by_label("Search"), window.page.get_by_label("State is:")
    await expect(state).to_have_value("open")
    await expect(page.locator("#rows")).to_contain_text("asleep")
    await window.shoot("search-and-selects")
    for chosen, said in (("complete", "is:complete"), ("", "")):
        await state.select_option(chosen)
        await expect(box).to_have_value(said)
    await expect(page).to_have_url(f"{window.base_url}/p/shop/trajectories")
    await box.fill("is:open reward:none")
    await box.press("Enter")
    await expect(page).to_have_url(f"{window.base_url}/p/shop/trajectories?q=is%3Aopen+reward%3Anone")
    await expect(state).to_have_value("open")
    await expect(page.locator("#f-rewarded")).to_have_value("no")


async def test_a_refused_change_keeps_the_search_and_the_choice(
    window: Window, owner: User, add_trajectory: Callable[..., Trajectory]
) -> None:
    for number in range(3):
        await sync_to_async(add_trajectory)(title=f"row {number}")
    await window.log_in(owner.email, PASSWORD)
    await window.open("/p/shop/trajectories?q=reward:none")
    page = window.page
    await page.locator("#rows [name=id]").first.click()
    await page.locator("#bulk-value").fill("3")
    await page.locator("#bulk-action").select_option("tag")
    await page.get_by_role("button", name="Do it to the chosen rows").click()
    await expect(page.get_by_role("alert")).to_have_text("A tag has 1 to 40 characters.")
    await expect(page.locator("#bulk-tag")).to_be_focused()
    await expect(page.locator("#bulk-count")).to_have_text("1 chosen")
    await expect(page).to_have_url(f"{window.base_url}/p/shop/trajectories?q=reward:none")
    await window.shoot("refused-change")
    await page.locator("#bulk-tag").fill("late")
    await page.get_by_role("button", name="Do it to the chosen rows").click()
    await page.wait_for_url("**/jobs/job_*")
    window.complaints[:] = [one for one in window.complaints if "status of 400" not in one]


async def test_all_rows_are_chosen_at_once_and_a_range_by_a_click_with_shift(
    window: Window, owner: User, add_trajectory: Callable[..., Trajectory]
) -> None:
    for number in range(4):
        await sync_to_async(add_trajectory)(title=f"row {number}")
    await window.log_in(owner.email, PASSWORD)
    await window.open("/p/shop/trajectories")
    page = window.page
    count, head, boxes = page.locator("#bulk-count"), page.locator("#choose-all"), page.locator("#rows [name=id]")
    await head.click()
    await expect(count).to_have_text("4 chosen")
    await expect(head).to_be_checked()
    await boxes.nth(1).click()
    await expect(count).to_have_text("3 chosen")
    await expect(head).not_to_be_checked()
    await head.click()
    await expect(count).to_have_text("4 chosen")
    await head.press("Space")
    await expect(page.locator("#bulk")).to_be_hidden()

    await boxes.nth(3).click()
    await boxes.nth(1).click(modifiers=["Shift"])
    await expect(count).to_have_text("3 chosen")
    await expect(boxes.nth(0)).not_to_be_checked()
    await boxes.nth(3).click(modifiers=["Shift"])
    await expect(page.locator("#bulk")).to_be_hidden()
    assert window.complaints == []


async def test_what_changes_all_that_is_found_is_asked_once_more(
    window: Window, owner: User, add_trajectory: Callable[..., Trajectory]
) -> None:
    await sync_to_async(add_trajectory)(title="row")
    await window.log_in(owner.email, PASSWORD)
    await window.open("/p/shop/trajectories")
    page = window.page
    asked: list[str] = []

    async def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        await (dialog.accept() if len(asked) > 1 else dialog.dismiss())

    page.on("dialog", answer)
    await page.locator("#choose-all").click()
    await page.locator("#bulk-value").fill("0.5")
    everything = page.get_by_role("button", name="Do it to all 1 found")
    await everything.click()
    await expect(page).to_have_url(f"{window.base_url}/p/shop/trajectories")
    await everything.click()
    await page.wait_for_url("**/jobs/job_*")
    undo = "It can be undone for 7 days."
    assert asked == [f"Reward the 1 trajectory found with 0.5? It reaches every page of this search. {undo}"] * 2


async def test_a_deletion_is_asked_by_its_name(
    window: Window, owner: User, add_trajectory: Callable[..., Trajectory]
) -> None:
    for number in range(2):
        await sync_to_async(add_trajectory)(title=f"row {number}")
    await window.log_in(owner.email, PASSWORD)
    await window.open("/p/shop/trajectories")
    page = window.page
    asked: list[str] = []

    async def refuse(dialog: Dialog) -> None:
        asked.append(dialog.message)
        await dialog.dismiss()

    page.on("dialog", refuse)
    undo = "It can be undone for 7 days."
    chosen = page.get_by_role("button", name="Do it to the chosen rows")
    await page.locator("#rows [name=id]").first.click()
    await page.locator("#bulk-action").select_option("delete")
    await chosen.click()
    await page.locator("#choose-all").click()
    await chosen.click()
    await page.get_by_role("button", name="Do it to all 2 found").click()
    await page.locator("#bulk-action").select_option("untag")
    await page.locator("#bulk-tag").fill("late")
    await page.get_by_role("button", name="Do it to all 2 found").click()
    assert asked == [
        f"Delete the chosen trajectory? {undo}",
        f"Delete the 2 chosen trajectories? {undo}",
        f"Delete all 2 trajectories found? It reaches every page of this search. {undo}",
        f"Take the tag “late” off all 2 trajectories found? It reaches every page of this search. {undo}",
    ]
    await window.shoot("bulk-bar")
    button, clear = page.get_by_role("button", name="Do it to the chosen rows"), page.locator("[data-bulk-clear]")
    places = [await one.bounding_box() for one in (button, clear)]
    assert places[0] is not None
    assert places[1] is not None
    assert places[0]["y"] == places[1]["y"]  # one line
    await page.locator("#bulk-action").select_option("complete")
    await chosen.click()
    await page.wait_for_url("**/jobs/job_*")
    assert len(asked) == 4
    await window.shoot("bulk-job")


async def test_the_page_tells_that_there_are_shortcuts(window: Window, owner: User, key: ApiKey) -> None:
    await window.log_in(owner.email, PASSWORD)
    await window.open("/p/shop/")
    page = window.page
    await page.get_by_role("button", name="Shortcuts").click()
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    await page.get_by_role("button", name="Close").click()
    for press in ("g", "p"):
        await page.keyboard.press(press)
    await page.wait_for_url("**/p/shop/people")
