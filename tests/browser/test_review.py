"""Reviewing in a real browser: fifty reviews by keyboard, a lost network, a reload, a stale undo, two at once."""

import time
from collections.abc import Callable
from statistics import median

import pytest
from asgiref.sync import sync_to_async
from playwright.async_api import Browser, Request, Route, expect

from apps.accounts.access import Caller
from apps.accounts.models import Project, User
from apps.feedback.models import Label
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.models import QueueItem, Review, ReviewQueue
from apps.feedback.queues.services import create_queue
from apps.feedback.queues.working import Submission, skip_review, submit_review, take_review
from apps.feedback.schemas import add_schema
from apps.feedback.services import add_label
from apps.trajectories.models import Trajectory
from tests.browser.conftest import Child, Window
from tests.browser.test_looks import CLEAN, OUTLINE, find_barriers
from tests.factories.accounts import PASSWORD

pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]

N_REVIEWS = 50
FIELDS = [
    {"name": "clarity", "kind": "scale", "low": 1, "high": 5, "title": "How clear is the answer?"},
    {"name": "polite", "kind": "binary", "title": "Is it polite?"},
]
TONE = {  # the best is listed first
    "name": "tone",
    "kind": "choice",
    "choices": [{"name": "good", "reward": 1}, {"name": "okay", "reward": 0.2}, {"name": "bad", "reward": -1}],
}
Add = Callable[..., Trajectory]
NOT_SENT = "net::ERR_INTERNET_DISCONNECTED"


@pytest.fixture
def make_queue(project: Project, trainer: User, add_trajectory: Add) -> Callable[..., ReviewQueue]:
    """Return a function that makes a queue of so many trajectories."""

    def make(n: int, **settings: object) -> ReviewQueue:
        caller = Caller(user=trainer)
        add_schema(caller=caller, project=project, definition={"fields": [*FIELDS, TONE]})
        told = {"name": "Tone", "field_names": ["clarity", "polite", "comment"], "guideline": "Be kind.", **settings}
        queue = create_queue(caller=caller, project=project, settings=told)
        rows = [add_trajectory(title=f"task {number}", group=str(number // 2)) for number in range(n)]
        add_trajectories(caller=caller, queue=queue, ids=[row.pk for row in rows])
        return queue

    return make


def read_wait(request: Request) -> list[float]:
    """How long the platform took to answer a submission, in milliseconds."""
    timing = request.timing
    return [timing["responseStart"] - timing["requestStart"]] if request.url.endswith("/submit") else []


async def test_fifty_reviews_by_keyboard(
    window: Window, mate: User, make_queue: Callable[..., ReviewQueue], capsys: pytest.CaptureFixture[str]
) -> None:
    queue = await sync_to_async(make_queue)(N_REVIEWS, field_names=["clarity", "polite", "tone", "comment"])
    page = window.page
    waits_ms: list[float] = []
    page.on("requestfinished", lambda request: waits_ms.extend(read_wait(request)))
    await window.log_in(mate.email, PASSWORD)
    await window.open(f"/p/shop/review/{queue.pk}/work")
    begun = time.monotonic()
    for number in range(N_REVIEWS):
        before = await page.locator("#desk").get_attribute("data-review")
        await page.keyboard.press(str(1 + number % 5))
        await page.keyboard.press("+" if number % 2 else "-")
        await page.keyboard.press("+")
        if number == 0:
            await page.keyboard.press("c")
            await page.keyboard.type("short and kind")
        await page.keyboard.press("Control+Enter")
        await page.locator(f"#desk:not([data-review='{before}'])").wait_for()
    await expect(page.get_by_text("Nothing is left for you here")).to_be_visible()
    took = time.monotonic() - begun
    with capsys.disabled():
        slowest = sorted(waits_ms)[int(0.95 * len(waits_ms))]
        words = f"a submission took {slowest:.0f} ms at p95, {median(waits_ms):.0f} ms in the middle"
        print(f"\n{N_REVIEWS} reviews by keyboard: {took:.1f} s; {words}")  # noqa: T201 (it is to be seen)
    await expect(page.locator("#tally-done")).to_have_text(str(N_REVIEWS))
    given = Review.objects.filter(state="submitted")
    assert await given.acount() == await QueueItem.objects.filter(state="done").acount() == N_REVIEWS
    assert await Label.objects.filter(field="comment").acount() == 1
    assert {label.said async for label in Label.objects.filter(field="clarity")} == {1, 2, 3, 4, 5}
    assert {label.said async for label in Label.objects.filter(field="tone")} == {"good"}
    await page.keyboard.press("z")
    await expect(page.locator("#tally-done")).to_have_text(str(N_REVIEWS - 1))
    await expect(page.locator("[name=v-clarity][value='5.0']")).to_be_checked()
    assert await Label.objects.filter(is_undo=True).acount() == 3
    await page.keyboard.press("z")
    await expect(page.locator(".toast", has_text="Your last review is undone already")).to_be_visible()
    for press in ("2", "1"):  # the fields are filled already: the keys say the same as on a fresh item
        await page.keyboard.press(press)
    await expect(page.locator("[name=v-clarity][value='2.0']")).to_be_checked()
    await expect(page.locator("[name=v-polite][value='false']")).to_be_checked()
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#tally-done")).to_have_text(str(N_REVIEWS))


async def test_a_queues_page_shows_what_comes_in(
    window: Window, trainer: User, project: Project, add_trajectory: Add
) -> None:
    queue = await sync_to_async(create_queue)(
        caller=Caller(user=trainer), project=project, settings={"name": "Late", "guideline": "Be kind."}
    )
    page = window.page
    await window.log_in(trainer.email, PASSWORD)
    await window.open(f"/p/shop/review/{queue.pk}/results")
    await expect(page.get_by_text("Nothing in it yet")).to_be_visible()
    row = await sync_to_async(add_trajectory)(title="a late task")
    await sync_to_async(add_trajectories)(caller=Caller(user=trainer), queue=queue, ids=[row.pk])
    await expect(page.locator("#queue-items")).to_contain_text("a late task")
    await page.get_by_role("link", name="Review 1 left").click()
    menu = page.locator(".guideline .menu-list")
    await page.locator("#live[data-state=live]").wait_for()
    await page.keyboard.press("h")
    await expect(menu).to_be_visible()
    form, open_menu = await page.locator("#review-form").bounding_box(), await menu.bounding_box()
    assert form is not None
    assert open_menu is not None
    assert open_menu["x"] + open_menu["width"] <= form["x"]
    main = await page.locator("main").bounding_box()
    assert main is not None
    assert open_menu["x"] >= main["x"]
    await page.set_viewport_size({"width": 360, "height": 860})
    open_menu, first_words = await menu.bounding_box(), await page.locator("#desk-steps").bounding_box()
    assert open_menu is not None
    assert first_words is not None
    assert open_menu["y"] + open_menu["height"] <= first_words["y"]  # it covers nothing of what it is about


async def test_the_counter_never_says_less_than_is_left(
    window: Window, mate: User, make_queue: Callable[..., ReviewQueue]
) -> None:
    queue = await sync_to_async(make_queue)(3, field_names=["polite"])
    page = window.page

    async def answer_late(route: Route) -> None:
        answer = await route.fetch()
        await page.wait_for_timeout(1_800)  # longer than what happened in the queue waits to be counted
        await route.fulfill(response=answer)

    await page.route("**/submit", answer_late)
    await window.log_in(mate.email, PASSWORD)
    await window.open(f"/p/shop/review/{queue.pk}/work")
    await page.locator("#live[data-state=live]").wait_for()
    await page.evaluate(
        """() => {
            const left = document.getElementById("tally-left");
            window.told = [left.textContent];
            new MutationObserver(() => window.told.push(left.textContent)).observe(left, { childList: true });
        }"""
    )
    await page.keyboard.press("2")
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#tally-left")).to_have_text("2")
    for _ in range(3):
        before = await page.locator("#desk").get_attribute("data-review")
        await page.keyboard.press("b")
        await page.locator(f"#desk:not([data-review='{before}'])").wait_for()
        await expect(page.locator("#review-form:not([inert])")).to_be_visible()
    await page.wait_for_timeout(1_800)
    assert set(await page.evaluate("window.told")) == {"3", "2"}


async def test_a_draft_survives_a_reload_and_a_review_a_lost_network(
    window: Window, mate: User, make_queue: Callable[..., ReviewQueue]
) -> None:
    queue = await sync_to_async(make_queue)(3)
    page = window.page
    await window.log_in(mate.email, PASSWORD)
    await window.open(f"/p/shop/review/{queue.pk}/work")
    await page.keyboard.press("4")
    await page.keyboard.press("c")
    await page.keyboard.type("half a thought")
    await page.reload()
    await expect(page.locator("#saved")).to_have_text("Draft restored")
    await expect(page.locator("textarea[name=t-comment]")).to_have_value("half a thought")
    await expect(page.locator("[name=v-clarity][value='4.0']")).to_be_checked()

    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#review-error")).to_contain_text("is not answered yet")
    await page.keyboard.press("2")
    await page.locator("#live[data-state=live]").wait_for()
    await page.wait_for_timeout(500)  # the next item comes ahead; should it be late, the rest holds all the same
    await page.context.set_offline(True)
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#unsaved")).to_contain_text("One review waits in this browser")
    await expect(page.get_by_role("button", name="Retry")).to_be_visible()
    assert not await Label.objects.aexists()
    await page.context.set_offline(False)
    await expect(page.locator("#tally-done")).to_have_text("1")
    await expect(page.locator("#unsaved")).to_be_hidden()
    comment = await Label.objects.aget(field="comment")
    assert comment.text == "half a thought"
    window.complaints[:] = [one for one in window.complaints if NOT_SENT not in one]


async def test_who_is_logged_out_meanwhile_is_told_and_loses_nothing(
    window: Window, mate: User, owner: User, make_queue: Callable[..., ReviewQueue]
) -> None:
    queue = await sync_to_async(make_queue)(2, field_names=["polite"])
    page, desk = window.page, f"/p/shop/review/{queue.pk}/work"
    await window.log_in(mate.email, PASSWORD)
    await window.open(desk)
    await page.locator("#live[data-state=live]").wait_for()
    await page.wait_for_timeout(500)  # the next item comes ahead
    await page.context.clear_cookies(name="sessionid")
    await page.get_by_text("Yes").click()
    await page.locator("#submit").click()
    unsaved = page.locator("#unsaved")
    await expect(unsaved).to_contain_text("Not saved: you are logged out. One review waits in this browser.")

    await window.log_in(owner.email, PASSWORD)  # somebody else at this browser: it is not theirs
    await window.open(desk)
    await page.locator("#live[data-state=live]").wait_for()
    await page.wait_for_timeout(500)
    await expect(unsaved).to_be_hidden()
    assert not await Label.objects.aexists()

    await page.context.clear_cookies(name="sessionid")
    await window.log_in(mate.email, PASSWORD)
    await window.open(desk)
    await expect(page.locator("#tally-done")).to_have_text("1")
    assert (await Label.objects.aget(field="polite")).author_id == mate.pk
    window.complaints[:] = [one for one in window.complaints if NOT_SENT not in one]


async def test_a_login_in_another_tab_is_enough(
    window: Window, mate: User, make_queue: Callable[..., ReviewQueue]
) -> None:
    queue = await sync_to_async(make_queue)(2, field_names=["polite"])
    page = window.page
    await window.log_in(mate.email, PASSWORD)
    await window.open(f"/p/shop/review/{queue.pk}/work")
    await page.locator("#live[data-state=live]").wait_for()
    await page.wait_for_timeout(500)  # the next item comes ahead
    await page.context.clear_cookies(name="sessionid")
    await page.get_by_text("Yes").click()
    await page.locator("#submit").click()
    async with page.context.expect_page() as opened:
        await page.get_by_role("link", name="Log in").click()
    other = await opened.value
    await other.get_by_label("E-mail").fill(mate.email)
    await other.get_by_label("Password").fill(PASSWORD)
    await other.get_by_role("button", name="Log in").click()
    await other.wait_for_url("**/work")
    await other.close()
    await page.get_by_role("button", name="Retry").click()
    await expect(page.locator("#unsaved")).to_be_hidden()
    await expect(page.locator("#tally-done")).to_have_text("1")
    assert await Label.objects.filter(field="polite").acount() == 1
    window.complaints[:] = [one for one in window.complaints if NOT_SENT not in one]


async def test_what_is_edited_while_it_waits_for_the_network_is_sent_so(
    window: Window, mate: User, make_queue: Callable[..., ReviewQueue]
) -> None:
    queue = await sync_to_async(make_queue)(2, field_names=["polite", "comment"])
    page = window.page
    await window.log_in(mate.email, PASSWORD)
    await window.open(f"/p/shop/review/{queue.pk}/work")
    await page.locator("#live[data-state=live]").wait_for()
    await page.wait_for_timeout(500)  # the next item comes ahead
    await page.context.set_offline(True)
    for n_waiting in ("One review waits", "2 reviews wait"):  # of the second nothing is there to go on to
        await page.get_by_text("Yes").click()
        await page.locator("#submit").click()
        await expect(page.locator("#unsaved")).to_contain_text(n_waiting)
    await page.locator("textarea[name=t-comment]").fill("what I thought of since")
    await page.context.set_offline(False)
    await expect(page.locator("#tally-done")).to_have_text("2")
    await expect(page.get_by_text("Nothing is left for you here")).to_be_visible()
    assert (await Label.objects.aget(field="comment")).text == "what I thought of since"
    assert await Label.objects.filter(field="polite").acount() == 2
    window.complaints[:] = [one for one in window.complaints if NOT_SENT not in one]


async def test_who_is_late_is_told_and_keeps_what_they_wrote(
    window: Window, mate: User, owner: User, make_queue: Callable[..., ReviewQueue]
) -> None:
    queue = await sync_to_async(make_queue)(1)
    page = window.page
    await window.log_in(mate.email, PASSWORD)
    await window.open(f"/p/shop/review/{queue.pk}/work")

    def be_faster() -> None:
        Review.objects.update(expires_at=queue.created_at)
        taken = take_review(caller=Caller(user=owner), queue=queue)
        assert taken is not None
        answers = {"clarity": {"value": 5}, "polite": {"value": True}}
        submit_review(caller=Caller(user=owner), review=taken, said=Submission(answers=answers))

    await sync_to_async(be_faster)()
    for press in ("2", "-"):
        await page.keyboard.press(press)
    await page.keyboard.press("c")
    await page.keyboard.type("my own words")
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#unsaved")).to_contain_text("your reservation ran out")
    await page.get_by_text("What I wrote").click()
    await expect(page.locator("#unsaved pre")).to_contain_text("my own words")
    await page.get_by_role("button", name="Discard").click()
    await expect(page.locator("#unsaved")).to_be_hidden()
    assert await Review.objects.filter(state="submitted").acount() == 1
    window.complaints[:] = [one for one in window.complaints if "409" not in one]


async def test_a_stale_undo_is_told_and_others_are_heard(
    window: Window, mate: User, owner: User, make_queue: Callable[..., ReviewQueue]
) -> None:
    queue = await sync_to_async(make_queue)(5)
    page = window.page
    await window.log_in(mate.email, PASSWORD)
    await window.open(f"/p/shop/review/{queue.pk}/work")
    for press in ("3", "+", "Control+Enter"):
        await page.keyboard.press(press)
    await expect(page.locator("#tally-done")).to_have_text("1")
    given = await Review.objects.select_related("item__trajectory").aget(state="submitted")

    def change() -> None:
        trajectory = given.item.trajectory
        add_label(caller=Caller(user=mate), trajectory=trajectory, field="clarity", value=1)

    await sync_to_async(change)()
    await page.keyboard.press("z")
    await expect(page.locator(".toast")).to_contain_text("somebody has changed what this review said since")
    before = await page.locator("#tally-left").inner_text()

    def take_one() -> None:
        assert take_review(caller=Caller(user=owner), queue=queue) is not None

    await sync_to_async(take_one)()
    await expect(page.locator("#tally-left")).not_to_have_text(before)
    window.complaints[:] = [one for one in window.complaints if "409" not in one]


async def test_what_was_empty_has_its_first_row_without_a_reload(
    window: Window, owner: User, project: Project, add_trajectory: Add
) -> None:
    caller = Caller(user=owner)
    queue = await sync_to_async(create_queue)(caller=caller, project=project, settings={"name": "Tone"})
    page = window.page
    await window.log_in(owner.email, PASSWORD)
    await window.open(f"/p/shop/review/{queue.pk}/results")
    await expect(page.locator("#queue-items h2")).to_have_text("Nothing in it yet")

    def add_one() -> None:
        add_trajectories(caller=caller, queue=queue, ids=[add_trajectory(title="first").pk])

    await sync_to_async(add_one)()
    await expect(page.locator("#queue-items tbody a")).to_have_text("first")
    await expect(page.locator("#queue-items h2")).to_have_count(0)
    await expect(page.locator("#items-title")).to_have_text("Items")  # the rest of its sheet stands


@pytest.mark.parametrize("width", [360, 1360])
async def test_the_pages_of_review_look_right(
    browser: Browser, web: Child, width: int, owner: User, mate: User, make_queue: Callable[..., ReviewQueue]
) -> None:
    queue = await sync_to_async(make_queue)(4, n_reviews=2)
    pairs = await sync_to_async(make_queue)(4, name="Which is better", mode="pairs")

    def disagree() -> QueueItem:
        for user, value in ((owner, 1), (mate, 5)):
            taken = take_review(caller=Caller(user=user), queue=queue)
            assert taken is not None
            answers = {"clarity": {"value": value}, "polite": {"value": True}, "comment": {"text": "too long"}}
            submit_review(caller=Caller(user=user), review=taken, said=Submission(answers=answers))
        return QueueItem.objects.get(state="disputed")

    item = await sync_to_async(disagree)()
    context = await browser.new_context(viewport={"width": width, "height": 860}, color_scheme="light")
    page = await context.new_page()
    window = Window(page=page, base_url=web.environment["CLAW_BASE_URL"])
    page.on("console", window.hear)
    page.on("pageerror", lambda error: window.complaints.append(str(error)))
    await window.log_in(owner.email, PASSWORD)
    root = "/p/shop/review"
    pages = {
        "queues": root,
        "new": f"{root}/new?q=label:none",
        "settings": f"{root}/{queue.pk}/settings",
        "results": f"{root}/{queue.pk}/results",
        "item": f"{root}/{queue.pk}/items/{item.pk}",
        "preview": f"{root}/{queue.pk}/preview",
        "work": f"{root}/{queue.pk}/work",
        "pair": f"{root}/{pairs.pk}/work",
    }
    for name, address in pages.items():
        await window.open(address)
        await page.wait_for_timeout(200)
        await window.shoot(f"review-{name}-{width}", full_page=True)
        assert await page.evaluate(OUTLINE) == CLEAN, name
        assert await find_barriers(window) == [], name
    await page.keyboard.press("h")
    drawer = await page.locator(".guideline .menu-list").bounding_box()
    assert drawer is not None
    assert 0 <= drawer["x"] < drawer["x"] + drawer["width"] <= width
    await window.shoot(f"review-guideline-{width}")
    await page.keyboard.press("h")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_contain_text("Choose an answer of the marked field")
    await window.shoot(f"review-keys-{width}")
    await context.close()
    assert window.complaints == []


async def test_the_form_of_a_pair_covers_nothing_and_what_both_share_is_folded(
    window: Window, mate: User, trainer: User, project: Project, add_trajectory: Add
) -> None:
    def make_pair() -> ReviewQueue:
        queue = create_queue(
            caller=Caller(user=trainer), project=project, settings={"name": "Which is better", "mode": "pairs"}
        )
        asked = [{"role": "system", "content": "Be kind. " * 200}, {"role": "user", "content": "Where is my parcel?"}]
        texts = ("On its way. " * 150, "Nobody knows. " * 150)
        rows = [add_trajectory(title=text[:9], group="g", step={"messages": asked, "text": text}) for text in texts]
        add_trajectories(caller=Caller(user=trainer), queue=queue, ids=[row.pk for row in rows])
        return queue

    queue = await sync_to_async(make_pair)()
    page = window.page
    await window.log_in(mate.email, PASSWORD)
    await window.open(f"/p/shop/review/{queue.pk}/work")
    await window.shoot("review-pair")
    steps, form = await page.locator("#desk-steps").bounding_box(), await page.locator("#review-form").bounding_box()
    assert steps is not None
    assert form is not None
    assert steps["y"] + steps["height"] <= form["y"]
    assert steps["height"] > 350
    assert form["y"] + form["height"] <= 860
    answers = page.locator(".message.answer")
    await expect(answers).to_have_count(2)
    await expect(page.get_by_text("Where is my parcel?").last).to_be_hidden()
    await page.get_by_text("Both begin with 2 messages alike").click()
    await expect(page.locator(".both [data-role=user] .text")).to_be_visible()
    await page.locator("#desk-steps").focus()
    await page.keyboard.press("End")
    await expect(answers.first.locator("p").last).to_be_in_viewport()
    await window.shoot("review-pair-end")
    await page.keyboard.press("1")
    await page.get_by_text("Why").click()
    await page.get_by_label("Why: Which is better?").fill("kinder")
    await expect(page.locator("#submit")).to_be_in_viewport(ratio=1)
    await window.shoot("review-pair-why")
    await page.keyboard.press("Control+Enter")
    await expect(page.get_by_role("heading", name="Nothing is left for you here")).to_be_visible()


async def test_who_asks_for_a_second_opinion_is_told_and_what_is_stuck_goes_on(
    window: Window, mate: User, owner: User, trainer: User, make_queue: Callable[..., ReviewQueue]
) -> None:
    people = [mate.email, owner.email]
    queue = await sync_to_async(make_queue)(2, field_names=["polite"], reviewers=people)
    page = window.page
    await window.log_in(mate.email, PASSWORD)
    await window.open(f"/p/shop/review/{queue.pk}/work")
    await page.get_by_text("Yes").click()
    await page.get_by_label("Ask for a second opinion").check()
    await page.locator("#submit").click()
    await expect(page.locator("#toasts")).to_contain_text(
        f"{owner.email} will be asked; the item stays open until then"
    )
    await expect(page.locator("#tally-done")).to_have_text("1")
    await page.keyboard.press("s")
    await page.get_by_role("button", name="Review it after all").click()
    await expect(page.get_by_text("Yes")).to_be_visible()
    await page.keyboard.press("s")
    await expect(page.get_by_text("Nothing is left for you here")).to_be_visible()

    def skip_all() -> None:
        while review := take_review(caller=Caller(user=owner), queue=queue):
            skip_review(caller=Caller(user=owner), review=review)

    await page.context.clear_cookies()
    await window.log_in(trainer.email, PASSWORD)
    await window.open(f"/p/shop/review/{queue.pk}/results")
    await sync_to_async(skip_all)()
    waiting = page.locator("#queue-waiting")
    await expect(waiting).to_contain_text("2 wait for nobody")
    page.once("dialog", lambda dialog: dialog.accept())
    await waiting.get_by_role("button", name="Close 1 with the reviews there are").click()
    await expect(waiting).to_contain_text("1 waits for nobody")
    await waiting.get_by_role("button", name="Ask who skipped 1 of them again").click()
    await expect(waiting).to_contain_text("1 waits to be taken")
    assert sorted([item.state async for item in QueueItem.objects.all()]) == ["done", "open"]
