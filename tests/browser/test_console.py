"""The console in a real browser: what is true only when HTML, JavaScript, sockets and policies meet."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async
from playwright.async_api import Route, expect

from apps.accounts.access import Caller
from apps.accounts.models import Agent, ApiKey, User
from apps.feedback.services import add_label
from apps.registry.models import Policy, Version
from apps.training.models import Run, RunState
from apps.trajectories.models import Trajectory
from apps.trajectories.recorder import fold_pending
from tests.browser.conftest import Child, Window
from tests.factories.accounts import PASSWORD
from tests.factories.registry import EngineFactory
from tests.fakes.engine import FakeEngine

pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]

AddTrajectory = Callable[..., Trajectory]
SOON_MS = 8_000
PRESS = "(buttons) => { for (const one of buttons) document.querySelector(one).click(); }"  # before any answer comes


async def call(function: Callable[..., Any], /, **arguments: Any) -> Any:
    """Call a service from this (asynchronous) test."""
    return await sync_to_async(function)(**arguments)


async def reread_reward(trajectory: Trajectory) -> float | None:
    await sync_to_async(trajectory.refresh_from_db)()
    return trajectory.reward


async def test_a_person_rewards_by_key_and_undoes_it(
    window: Window, owner: User, key: ApiKey, trajectory: Trajectory
) -> None:
    await window.log_in(owner.email, PASSWORD)
    await window.open("/p/shop/trajectories")
    page = window.page
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/trajectories/{trajectory.id}")
    await page.locator("#live[data-state=live]").wait_for()

    await page.keyboard.press("+")
    await expect(page.locator("#reward-panel .big-reward")).to_have_text("+1.00")
    await expect(page.locator(".toast")).to_contain_text("Trajectory rewarded +1.00")
    assert await reread_reward(trajectory) == 1.0
    await page.locator("#judge-zero").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#reward-panel .big-reward")).to_have_text("0.00")
    await expect(page.locator("#judge-zero")).to_be_focused()
    await page.keyboard.press("+")
    await expect(page.locator("#reward-panel .big-reward")).to_have_text("+1.00")
    await expect(page.locator(".toast")).to_contain_text("Trajectory rewarded +1.00")
    await page.keyboard.press("z")  # back to what was said before
    await expect(page.locator("#reward-panel .big-reward")).to_have_text("0.00")
    assert await reread_reward(trajectory) == 0
    await page.locator("#reward-panel").get_by_role("button", name="Take back").click()
    await expect(page.locator("#reward-panel .big-reward")).to_have_text("–")
    assert await reread_reward(trajectory) is None

    await page.locator("#step-0").get_by_role("button", name="Bad, minus one").click()
    await expect(page.locator("#reward-panel .big-reward")).to_have_text("−1.00")
    await page.locator(".toast").get_by_role("button", name="Undo").click()
    await expect(page.locator("#reward-panel .big-reward")).to_have_text("–")

    await page.get_by_text("A finer number, or a reason").click()
    await page.locator("#fine-text").evaluate("(box) => { box.style.height = '180px'; }")  # pulled by its corner
    await page.get_by_label("Reward −1 to 1").fill("0.5")
    await page.get_by_role("button", name="Save reward").click()
    await expect(page.locator("#reward-panel .big-reward")).to_have_text("+0.50")
    await page.locator(".toast").get_by_role("button", name="Undo").last.click()
    await expect(page.locator("#reward-panel .big-reward")).to_have_text("–")

    await call(add_label, caller=Caller(key=key), trajectory=trajectory, value=0.25)
    await expect(page.locator("#reward-panel .big-reward")).to_have_text("+0.25", timeout=SOON_MS)


async def test_what_was_fetched_before_a_change_does_not_put_the_old_value_back(
    window: Window, owner: User, key: ApiKey, trajectory: Trajectory
) -> None:
    await call(add_label, caller=Caller(key=key), trajectory=trajectory, value=0.25)
    await window.log_in(owner.email, PASSWORD)
    page, address = window.page, f"/p/shop/trajectories/{trajectory.id}"
    await window.open(address)
    await page.locator("#live[data-state=live]").wait_for()
    fetched, may_answer = asyncio.Event(), asyncio.Event()

    async def answer_late(route: Route) -> None:
        answer = await route.fetch()
        fetched.set()
        await may_answer.wait()
        await route.fulfill(response=answer)

    await page.route(f"**{address}", answer_late, times=1)
    await call(add_label, caller=Caller(key=key), trajectory=trajectory, value=0.75)  # news: the page is fetched again
    await asyncio.wait_for(fetched.wait(), SOON_MS / 1000)
    await page.keyboard.press("+")
    reward = page.locator("#reward-panel .big-reward")
    await expect(reward).not_to_have_text("+0.25")
    said = await reward.text_content()
    await page.evaluate(
        """() => {
            const panel = document.getElementById("reward-panel");
            const tell = () => panel.querySelector(".big-reward").textContent;
            window.told = [tell()];
            new MutationObserver(() => window.told.push(tell())).observe(panel, { childList: true, subtree: true });
        }"""
    )
    may_answer.set()
    await page.wait_for_timeout(2_500)  # for the late answer, and for the one that is asked for again
    assert set(await page.evaluate("window.told")) == {said}


FITS = """(select) => {
    const style = getComputedStyle(select);
    const pen = document.createElement('canvas').getContext('2d');
    pen.font = style.font;
    const words = select.selectedOptions[0].textContent;
    const room = select.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return pen.measureText(words).width <= room;
}"""


async def test_a_form_that_is_pressed_twice_is_sent_once(window: Window, owner: User, agent: Agent) -> None:
    await window.log_in(owner.email, PASSWORD)
    await window.open("/p/shop/agents")
    page = window.page
    await page.get_by_label("Name").fill("Second clerk")
    await page.evaluate(PRESS, ["main form .primary", "main form .primary"])
    await page.wait_for_url("**/agents/second-clerk")
    await expect(page.locator(".notice")).to_have_count(1)
    assert await Agent.objects.filter(name="Second clerk").acount() == 1
    await page.go_back()
    await page.get_by_label("Name").fill("Third clerk")
    await page.get_by_role("button", name="Create agent").click()
    await page.wait_for_url("**/agents/third-clerk")


async def test_a_new_run_shows_its_button_all_the_time_and_says_what_was_chosen_in_its_address(
    window: Window, owner: User, ready: list[Trajectory]
) -> None:
    await window.log_in(owner.email, PASSWORD)
    page, launch = window.page, window.page.get_by_role("button", name="Launch run")
    for width, height in ((1360, 620), (360, 740)):
        await page.set_viewport_size({"width": width, "height": height})
        await window.open("/p/shop/runs/new")
        for place in ("0", "document.body.scrollHeight / 2"):
            await page.evaluate(f"window.scrollTo(0, {place})")
            await expect(launch).to_be_in_viewport(ratio=1)
        assert await page.evaluate("getComputedStyle(document.querySelector('.tall > .sticky')).overflowY") == "visible"
    await page.set_viewport_size({"width": 1360, "height": 860})
    assert await page.get_by_label("Learns from").evaluate(FITS)
    for algorithm in ("hindsight", "sft", "preference"):
        await page.get_by_label("Learns from").select_option(algorithm)
        await page.wait_for_url(f"**recipe.algorithm={algorithm}&*")
        assert await page.get_by_label("Learns from").evaluate(FITS), algorithm
    await page.get_by_label("Learns from").select_option("unpaired")
    await page.wait_for_url("**/runs/new?recipe.algorithm=unpaired&recipe.n_steps=1&recipe.trajectories_per_step=2")
    await page.reload()
    await expect(page.get_by_label("Learns from")).to_have_value("unpaired")
    await page.evaluate(PRESS, [".launch .primary", ".launch .primary"])
    await page.wait_for_url("**/runs/run_*")
    assert await Run.objects.acount() == 1


async def test_quick_presses_are_taken_one_after_the_other(
    window: Window, owner: User, trajectory: Trajectory, policy: Policy
) -> None:
    await window.log_in(owner.email, PASSWORD)
    await window.open(f"/p/shop/trajectories/{trajectory.id}")
    page = window.page
    await page.evaluate("window.isSamePage = true")
    await page.locator("#steps .thumbs button").first.focus()
    await page.evaluate(
        PRESS, ["#step-0 .thumbs button:first-child", '[data-key="-"]', '[data-key="0"]', '[data-key="+"]']
    )
    await expect(page.locator(".toast")).to_contain_text("Trajectory rewarded +1.00")
    await expect(page.locator("#reward-panel .big-reward")).to_have_text("+1.00")
    await expect(page.locator("#step-0 .turn-foot .reward")).to_have_text("−1.00")
    assert await reread_reward(trajectory) == 1.0
    assert await page.evaluate("window.isSamePage")

    await page.evaluate(PRESS, ["[data-undo]", "#exclusion button"])
    await expect(page.locator(".toast")).to_contain_text("Kept out of training")
    await expect(page.locator("#exclusion button")).to_have_attribute("aria-checked", "true")
    await expect(page.locator("#reward-panel .big-reward")).not_to_have_text("+1.00")

    await page.evaluate(PRESS, ['#step-0 .views a[href*="view=tokens"]', '#step-0 .views a[href*="view=raw"]'])
    await expect(page.locator("#step-0 .views [aria-current=true]")).to_have_text("Raw")
    window.complaints = [one for one in window.complaints if "htmx:" not in one]  # it is loud about what it aborts


async def test_news_waits_until_a_button_is_let_go(
    window: Window, owner: User, key: ApiKey, trajectory: Trajectory, policy: Policy
) -> None:
    await window.log_in(owner.email, PASSWORD)
    await window.open(f"/p/shop/trajectories/{trajectory.id}")
    page = window.page
    await page.locator("#judge-good").hover()
    await page.mouse.down()
    await call(add_label, caller=Caller(key=key), trajectory=trajectory, value=0.25)
    async with page.expect_response(lambda response: response.url.endswith(trajectory.id)):
        pass
    await expect(page.locator("#reward-panel .big-reward")).to_have_text("–")
    await page.mouse.up()
    await expect(page.locator(".toast")).to_contain_text("Trajectory rewarded +1.00")


async def test_the_api_is_documented_on_a_page(window: Window, owner: User) -> None:
    await window.log_in(owner.email, PASSWORD)
    page = window.page
    await page.goto(f"{window.base_url}/api/docs")
    await page.locator(".opblock-tag[data-tag=runs]").click()
    await expect(page.locator(".opblock-summary-path", has_text="/api/v1/runs").first).to_be_visible()
    assert await page.locator(".opblock-tag").count() > 20
    await page.locator(".opblock", has_text="/api/v1/runs").first.click()
    await expect(page.locator(".opblock-body").first).to_be_visible()
    await window.shoot("api")


async def test_a_run_is_launched_and_its_curve_moves(
    window: Window, worker: Child, owner: User, add_trajectory: AddTrajectory
) -> None:
    for number in range(12):
        await call(add_trajectory, reward=1.0 if number % 3 else -0.5)
    await window.log_in(owner.email, PASSWORD)
    await window.open("/p/shop/runs/new")
    page = window.page
    await expect(page.locator(".ready-count")).to_have_text("12")
    await page.get_by_label("Name optional").fill("warmer")
    await page.get_by_role("spinbutton", name="Steps").fill("4")
    await page.get_by_role("spinbutton", name="Batch trajectories a training step").fill("2")
    await page.get_by_label("Reward, at least").fill("0.5")
    await page.get_by_label("Reward, at least").blur()
    await expect(page.locator(".ready-count")).to_have_text("8", timeout=SOON_MS)
    await expect(page.get_by_role("button", name="Launch run")).to_be_disabled()  # all that is left is worth the same
    await expect(page.locator("#launch-why")).to_be_visible()
    await page.get_by_label("Reward, at least").fill("")
    await page.get_by_label("Reward, at least").blur()
    await expect(page.locator("#launch-why")).to_be_hidden(timeout=SOON_MS)
    await page.get_by_role("button", name="Launch run").click()
    await page.wait_for_url("**/runs/run_*")
    await expect(page.locator("[data-passing]")).to_have_count(0, timeout=SOON_MS)  # "queued" goes once it is not so

    chart = page.locator("#chart-loss.is-drawn")
    await expect(chart).to_have_attribute("data-points", "2", timeout=60_000)
    await window.shoot("run-under-way")
    await expect(chart).to_have_attribute("data-points", "4", timeout=60_000)
    await expect(page.locator("#run-state")).to_contain_text("succeeded", timeout=30_000)
    await expect(page.locator("#run-batches tbody tr")).to_have_count(4, timeout=SOON_MS)
    run = await Run.objects.aget()
    assert (run.name, run.state, run.steps_done) == ("warmer", RunState.SUCCEEDED, 4)


async def test_new_rows_wait_and_a_lost_socket_comes_back(
    window: Window, web: Child, owner: User, add_trajectory: AddTrajectory, key: ApiKey
) -> None:
    old = await call(add_trajectory, title="the old one")
    await window.log_in(owner.email, PASSWORD)
    await window.open("/p/shop/trajectories")
    page = window.page
    rows = page.locator("#rows tr")
    new = await call(add_trajectory, title="the new one")
    await call(add_label, caller=Caller(key=key), trajectory=new, value=1.0)
    pill = page.locator("#new-pill")
    await expect(pill).to_contain_text("new", timeout=SOON_MS)
    await expect(rows).to_have_count(1)
    await call(add_label, caller=Caller(key=key), trajectory=old, value=-1.0)
    await expect(rows.first).to_contain_text("−1.00", timeout=SOON_MS)
    await pill.click()
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("the new one")

    await sync_to_async(web.stop)()
    await expect(page.locator("#live")).not_to_have_attribute("data-state", "live", timeout=SOON_MS)
    missed = await call(add_trajectory, title="while we were away")
    await sync_to_async(web.start)()
    await expect(page.locator("#live")).to_have_attribute("data-state", "live", timeout=30_000)
    await expect(pill).to_be_visible(timeout=SOON_MS)
    await pill.click()
    await expect(page.locator(f"#{missed.id}")).to_be_visible()
    window.complaints = [one for one in window.complaints if "WebSocket connection" not in one]


async def test_a_new_key_waits_for_its_first_call(
    window: Window, owner: User, agent: Agent, base: Version, policy: Policy
) -> None:
    with FakeEngine() as engine:
        await call(EngineFactory.create, base_url=engine.url, base_model="tiny")
        await window.log_in(owner.email, PASSWORD)
        await window.open("/p/shop/agents/clerk")
        page = window.page
        await page.get_by_role("button", name="Create key").click()
        secret = await page.locator("#secret").inner_text()
        await expect(page.locator("#first-call")).to_contain_text("Waiting for the first call")
        async with httpx.AsyncClient() as client:
            body = {"model": "default", "messages": [{"role": "user", "content": "Are you there?"}]}
            headers = {"Authorization": f"Bearer {secret}"}
            answer = await client.post(f"{window.base_url}/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        await call(fold_pending, limit=10)
        await expect(page.locator("#first-call.is-green")).to_contain_text("It works", timeout=SOON_MS)
        await page.get_by_role("link", name="Open the trajectory").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Are you there?")
        await page.locator("#step-0").get_by_role("link", name="Tokens").click()
        await expect(page.locator("#step-0 .tok[title$='nats']").first).to_be_visible()


async def test_colours_are_chosen_without_a_flash(window: Window, owner: User, policy: Policy) -> None:
    await window.log_in(owner.email, PASSWORD)
    await window.open("/p/shop/")
    page = window.page
    await page.get_by_role("button", name="Dark colours").click()
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    html = await (await page.request.get(f"{window.base_url}/p/shop/")).text()
    assert 'data-theme="dark"' in html
    await page.get_by_role("button", name="Colours of the system").click()
    await expect(page.locator("html")).to_have_attribute("data-theme", "system")


async def test_hostile_words_do_nothing(window: Window, owner: User, add_trajectory: AddTrajectory) -> None:
    words = '<script>document.title="owned"</script><img src=/x onerror="document.title=\'owned\'">'
    row = await call(
        add_trajectory, title=words, step={"text": words, "messages": [{"role": "user", "content": words}]}
    )
    await window.log_in(owner.email, PASSWORD)
    await window.open(f"/p/shop/trajectories/{row.id}")
    await window.page.wait_for_timeout(300)
    assert "owned" not in (await window.page.title()).split("·")[-1]
    assert await window.page.locator("main img, main script:not([type='application/json'])").count() == 0
