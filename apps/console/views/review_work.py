"""Where reviews are given: one item at a time, its form, and what follows a press. Everything works by plain forms;
`static/js/review.js` makes it fast and keeps drafts.
"""

from collections.abc import Callable
from typing import Any

from django.http import HttpResponse, JsonResponse
from django.utils import timezone

from apps.accounts.models import Role
from apps.console.page import Page, project_page
from apps.console.queries import review as queries
from apps.console.replies import LED_BACK
from apps.console.review_form import read_answers
from apps.console.review_words import tell_who_is_asked
from apps.console.snippets import curl
from apps.core.counted import count_of
from apps.core.errors import InvalidInput, NotFound, ServiceError
from apps.feedback.queues import filling, services, waiting, working
from apps.feedback.queues.models import Mode, Review, ReviewQueue

WANTS_JSON = "application/json"
NOTHING_GIVEN = "you have given nothing here yet that could be undone"


@project_page(role=Role.REVIEWER)
def work(page: Page, queue_id: str) -> HttpResponse:
    """The item that this person has open, or the next one; opening the page is what reserves it.

    With `ahead` only the part of the page comes that changes from item to item: of the one after that review.
    """
    queue = queries.find_queue(page.project, page.caller, queue_id)
    ahead = page.request.GET.get("ahead", "")
    review = working.take_review(caller=page.caller, queue=queue, besides=ahead)
    if ahead or page.request.GET.get("part"):
        return _render_desk(page, queue, review)
    return _render_work(page, queue, review)


def _render_work(page: Page, queue: ReviewQueue, review: Review | None, **more: Any) -> HttpResponse:
    last = queries.find_last(queue, user=page.user)
    is_late = last is None and queries.is_last_decided(queue, user=page.user)
    return page.render(
        "console/review_work.html",
        tally=queries.read_tally(queue, user=page.user),
        last=last,
        no_undo=working.DECIDED_SINCE if is_late else NOTHING_GIVEN,
        curl=curl("POST", f"/api/v1/review-queues/{queue.pk}/next", {}),
        **_desk(page, queue, review),
        **more,
    )


def _desk(page: Page, queue: ReviewQueue, review: Review | None) -> dict[str, Any]:
    desk = queries.lay_out(review, user=page.user) if review else None
    n_skipped = 0 if desk else waiting.list_skipped(queue, page.user).count()
    return {"queue": queue, "desk": desk, "n_skipped": n_skipped, "view": "chat", "step_views": ()}


def _render_desk(page: Page, queue: ReviewQueue, review: Review | None) -> HttpResponse:
    return page.render("console/parts/review_desk.html", **_desk(page, queue, review))


@project_page(role=Role.REVIEWER)
def tally(page: Page, queue_id: str) -> HttpResponse:
    """How far this person is, as data."""
    queue = queries.find_queue(page.project, page.caller, queue_id)
    found = queries.read_tally(queue, user=page.user)
    return JsonResponse({"left": found.left, "done": found.done, "today": found.today, "state": queue.state})


@project_page("POST", role=Role.REVIEWER)
def ask_me(page: Page, queue_id: str) -> HttpResponse:
    """Have this person be given again what they skipped."""
    queue = queries.find_queue(page.project, page.caller, queue_id)
    n = waiting.ask_me_again(caller=page.caller, queue=queue)
    return page.done(
        f"You may be given {count_of(n, 'item')} again that you had skipped", to=page.url("review_work", queue.pk)
    )


@project_page("POST", role=Role.REVIEWER)
def act(page: Page, queue_id: str, review_id: str, action: str) -> HttpResponse:
    """Submit, skip, put back, undo or renew one's review."""
    if action not in _ACTIONS:
        raise NotFound("there is no such way to go on")
    is_data = WANTS_JSON in page.request.headers.get("Accept", "")
    review = None
    try:
        review = working.find_review(caller=page.caller, review_id=review_id)
        if review.queue_id != queue_id or review.queue.project_id != page.project.pk:
            raise NotFound("this queue has no such review of yours")
        message = _ACTIONS[action](page, review)
    except ServiceError as error:
        if not is_data and review is not None and error.status in LED_BACK:
            return _render_refused(page, review, error)
        if not is_data:
            raise
        problem = {"error": error.message, "field": error.field, "code": error.code}
        return JsonResponse(problem, status=error.status)
    if is_data:
        saved_at = timezone.now().isoformat(timespec="seconds")
        return JsonResponse({"message": message, "saved_at": saved_at})
    return page.done(message, to=page.url("review_work", queue_id))


def _render_refused(page: Page, review: Review, error: ServiceError) -> HttpResponse:
    """Show the item again, as its form was filled in, with what stands in the way."""
    try:
        review.answers = read_answers(page.request.POST)
    except InvalidInput:  # of what cannot be read nothing can be shown
        review.answers = {}
    review.wants_second = page.request.POST.get("wants_second") == "1"
    return _render_work(page, review.queue, review, desk_error=error, status=error.status)


def _submit(page: Page, review: Review) -> str:
    form = page.request.POST
    seconds = form.get("seconds", "")
    said = working.Submission(
        answers=read_answers(form),
        seconds=int(seconds) if seconds.isdecimal() and len(seconds) < 9 else None,
        wants_second=form.get("wants_second") == "1",
    )
    given = working.submit_review(caller=page.caller, review=review, said=said)
    return f"Review saved. {tell_who_is_asked(given.item)}" if said.wants_second else "Review saved"


def _skip(page: Page, review: Review) -> str:
    working.skip_review(caller=page.caller, review=review, reason=page.request.POST.get("reason", ""))
    return "Skipped: you will not be given this item again"


def _put_back(page: Page, review: Review) -> str:
    working.put_back_review(caller=page.caller, review=review, reason=page.request.POST.get("reason", ""))
    hidden = "; what others say of it stays hidden from you until you have reviewed it, or it is done"
    return f"Put back to the end of the queue{hidden if review.queue.is_blind else ''}"


def _undo(page: Page, review: Review) -> str:
    working.undo_review(caller=page.caller, review=review)
    return "Undone: the item is open again, with your answers"


def _renew(_page: Page, review: Review) -> str:
    working.renew_review(review)
    return "Still yours"


_ACTIONS: dict[str, Callable[[Page, Review], str]] = {
    "submit": _submit,
    "skip": _skip,
    "requeue": _put_back,
    "undo": _undo,
    "renew": _renew,
}


@project_page(role=Role.REVIEWER)
def preview(page: Page, queue_id: str) -> HttpResponse:
    """The page as a reviewer would see it; nothing is reserved, nothing can be saved."""
    queue = queries.find_queue(page.project, page.caller, queue_id)
    items = queue.items.present().select_related("trajectory", "other").order_by("turn", "pk")
    item = items.first()
    if item is not None:
        rows = [row for row in (item.trajectory, item.other) if row is not None]
    else:
        rows = _choose(queue, filling.find_newest(page.project, queue.query, n=200, hidden=page.hidden))
    if not rows:
        raise InvalidInput("there is nothing to show yet: the queue is empty, and its search finds nothing")
    return page.render(
        "console/review_work.html",
        queue=queue,
        desk=queries.preview(queue, rows, user=page.user),
        is_preview=True,
        view="chat",
        step_views=(),
        n_matching=filling.count_matching(page.project, queue.query, hidden=page.hidden) if queue.has_source else None,
        fields=services.read_fields(queue),
    )


def _choose(queue: ReviewQueue, found: list[Any]) -> list[Any]:
    if queue.mode == Mode.SCORE:
        return found[:1]
    return [row for pair in filling.pair_up(found)[:1] for row in pair]
