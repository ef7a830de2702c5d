"""Review queues for people: the list, making and changing one, what came out, and deciding between reviews."""

from typing import Any

from django.http import HttpResponse, QueryDict

from apps.accounts.models import Role
from apps.console.page import Page, project_page
from apps.console.queries import review as queries
from apps.console.review_form import read_answers, read_boxes, read_sides, tell_answers
from apps.console.review_words import tell_who_is_asked
from apps.console.snippets import curl
from apps.core.counted import count_of
from apps.core.errors import InvalidInput, ServiceError
from apps.core.paging import page_newest_first
from apps.feedback.queues import deciding, filling, results, services, waiting
from apps.feedback.queues.collecting import add_reviewed_to_dataset
from apps.feedback.queues.models import ItemState, Mode, QueueState, ReviewQueue
from apps.feedback.schemas import find_schema
from apps.feedback.score_schema import FieldKind
from apps.trajectories.datasets.services import find_dataset
from apps.trajectories.search.language import parse_query
from apps.trajectories.search.services import find_strangers

PER_PAGE = 50
SHOWN_STATES = (*ItemState.choices, (waiting.STUCK, "waiting for nobody"))
_NUMBERS = {"n_reviews": int, "hold_minutes": int, "sample_percent": float, "tolerance_percent": float}


@project_page()
def queues(page: Page) -> HttpResponse:
    """The project's queues: mine first in mind, what is left, what is done."""
    found = page_newest_first(
        services.list_queues(page.project), before=page.request.GET.get("before") or None, limit=PER_PAGE
    )
    rows = queries.list_rows(found.items, user=page.user)
    return page.render("console/review_queues.html", rows=rows, found=found, curl=curl("GET", "/api/v1/review-queues"))


@project_page("GET", "HEAD", "POST", role=Role.TRAINER)
def new_queue(page: Page) -> HttpResponse:
    """The form of a new queue; the address may bring a search (`?q=`) along. Who is alone has nobody to be blind to."""
    if page.request.method != "POST":
        is_blind = len(queries.list_reviewers(page.project)) > 1
        given = {"query": page.request.GET.get("q", ""), "field_names": ["reward", "comment"], "is_blind": is_blind}
        return _render_settings(page, None, given)
    return _save(page, None)


@project_page("GET", "HEAD", "POST", role=Role.TRAINER)
def queue_settings(page: Page, queue_id: str) -> HttpResponse:
    """A queue's settings."""
    queue = queries.find_queue(page.project, page.caller, queue_id)
    if page.request.method == "POST":
        return _save(page, queue)
    return _render_settings(page, queue, _given_by(queue))


def _given_by(queue: ReviewQueue) -> dict[str, Any]:
    given = {name: getattr(queue, name) for name in services.SETTINGS if name != "reviewers"}
    return {
        **given,
        "sample_percent": f"{100 * queue.sample_rate:g}",
        "tolerance_percent": f"{100 * queue.tolerance:g}",
        "reviewers": list(queue.reviewers.values_list("email", flat=True)),
    }


def _save(page: Page, queue: ReviewQueue | None) -> HttpResponse:
    form = page.request.POST
    given = _read_form(form)
    if "count" in form:  # the search is asked, nothing is saved
        return _render_settings(page, queue, given)
    try:
        settings = _read_settings(form)
        if queue is None:
            queue = services.create_queue(caller=page.caller, project=page.project, settings=settings)
        else:
            settings.pop("mode", None)
            queue = services.change_queue(caller=page.caller, queue=queue, settings=settings)
    except ServiceError as error:
        return _render_settings(page, queue, given, error=error)
    return page.done(f"Saved: {queue.name}", to=page.url("review_results", queue.pk))


def _read_form(form: QueryDict) -> dict[str, Any]:
    plain = {name: form.get(name, "") for name in ("name", "guideline", "query", "mode", *_NUMBERS)}
    listed = {name: form.getlist(name) for name in ("field_names", "reviewers")}
    return {**plain, **listed, "auto_add": "auto_add" in form, "is_blind": "is_blind" in form}


def _read_settings(form: QueryDict) -> dict[str, Any]:
    given = _read_form(form)
    for name, read in _NUMBERS.items():
        try:
            given[name] = read(given[name].replace(",", "."))
        except ValueError:
            raise InvalidInput(f"{name.replace('_', ' ')} is a number", field=name) from None
    given["sample_rate"] = given.pop("sample_percent") / 100
    given["tolerance"] = given.pop("tolerance_percent") / 100
    given["mode"] = given["mode"] or Mode.SCORE
    return given


def _render_settings(
    page: Page, queue: ReviewQueue | None, given: dict[str, Any], *, error: ServiceError | None = None
) -> HttpResponse:
    n_matching, fault = _count(page, given)
    fields = [spec for spec in find_schema(page.project.pk).fields.fields if spec.kind != FieldKind.RANKING]
    return page.render(
        "console/review_settings.html",
        queue=queue,
        given=given,
        fields=fields,
        people=queries.list_reviewers(page.project),
        n_matching=n_matching,
        n_pairs=_count_pairs(page, given["query"]) if n_matching and given.get("mode") == Mode.PAIRS else 0,
        counted=filling.COUNTED,
        fault=fault,
        strangers=[] if fault else find_strangers(project=page.project, query=parse_query(given["query"])),
        form_error=error,
        status=error.status if error else 200,
        curl=curl("POST", "/api/v1/review-queues", {"name": given.get("name", ""), "query": given["query"]}),
    )


def _count(page: Page, given: dict[str, Any]) -> tuple[int | None, str]:
    """Return how many the search finds now (None where the queue is filled by hand), or why that cannot be said."""
    if not given["query"] and not given.get("auto_add"):
        return None, ""
    try:
        return filling.count_matching(page.project, given["query"], hidden=page.hidden), ""
    except ServiceError as error:
        return None, error.message


def _count_pairs(page: Page, query: str) -> int:
    found = filling.find_newest(page.project, query, n=filling.COUNTED, hidden=page.hidden)
    return len(filling.pair_up(found))


@project_page("POST", role=Role.TRAINER)
def change_state(page: Page, queue_id: str) -> HttpResponse:
    """Pause, open or archive a queue."""
    queue = queries.find_queue(page.project, page.caller, queue_id)
    state = page.request.POST.get("state", "")
    services.set_state(caller=page.caller, queue=queue, state=state)
    words = {"open": "Open: items are given out", "paused": "Paused: nothing is given out", "archived": "Archived"}
    return page.done(words[state], to=page.url("review_results", queue.pk))


@project_page()
def queue_results(page: Page, queue_id: str) -> HttpResponse:
    """How far a queue is, who did how much, how far people agree, and what they disagree on."""
    queue = queries.find_queue(page.project, page.caller, queue_id)
    state = page.request.GET.get("state", "")
    if state and state not in dict(SHOWN_STATES):
        raise InvalidInput(f"state is one of {', '.join(dict(SHOWN_STATES))}", field="state")
    items = page_newest_first(
        results.list_items(queue, state=state), before=page.request.GET.get("before") or None, limit=PER_PAGE
    )
    seen = results.find_seen(queue, items.items, caller=page.caller)
    words = {spec.name: spec.words for spec in find_schema(queue.project_id).fields.fields}
    return page.render(
        "console/review_results.html",
        queue=queue,
        counts=results.count_items(queue),
        waiting=waiting.read_waiting(queue) if queue.state != QueueState.ARCHIVED else None,
        progress=results.read_progress(queue),
        agreement=results.read_agreement(queue, hidden=page.hidden),
        left=results.count_left_for(queue, page.user) if queue.state == QueueState.OPEN else 0,
        items=[
            (item, item.pk in seen, [words.get(name, name.replace("_", " ")) for name in item.disputed])
            for item in items.items
        ],
        found=items,
        state=state,
        states=SHOWN_STATES,
        datasets=list(page.project.datasets.order_by("name")[:100]),
        curl=curl("GET", f"/api/v1/review-queues/{queue.pk}/results"),
    )


@project_page(role=Role.REVIEWER)
def queue_item(page: Page, queue_id: str, item_id: str) -> HttpResponse:
    """One item: what was said of it, and the form by which a trainer decides."""
    return _render_item(page, queue_id, item_id)


def _render_item(page: Page, queue_id: str, item_id: str, *, error: ServiceError | None = None) -> HttpResponse:
    queue = queries.find_queue(page.project, page.caller, queue_id)
    item = queries.find_item(queue, page.caller, item_id)
    reviews = results.read_reviews(item, caller=page.caller)
    known = find_schema(queue.project_id).fields.fields
    specs = [spec for spec in services.read_fields(queue) if spec.name in item.disputed]
    boxes = read_boxes(specs, {}) if item.other is None else [read_sides(item, is_swapped=False, answers={})]
    return page.render(
        "console/review_item.html",
        queue=queue,
        item=item,
        shown=queries.show_sides(item, user=page.user),
        view="chat",
        step_views=(),
        reviews=None if reviews is None else [(one, tell_answers(item, one.answers, known)) for one in reviews],
        decision=tell_answers(item, item.decision or {}, known),
        askable=waiting.list_askable(item) if item.state == ItemState.OPEN else [],
        boxes=boxes if item.state == ItemState.DISPUTED and reviews is not None else [],
        form_error=error,
        status=error.status if error else 200,
        curl=curl("GET", f"/api/v1/review-items/{item.pk}"),
    )


@project_page("POST", role=Role.TRAINER)
def decide(page: Page, queue_id: str, item_id: str) -> HttpResponse:
    """Decide between reviews that disagree."""
    queue = queries.find_queue(page.project, page.caller, queue_id)
    item = queries.find_item(queue, page.caller, item_id)
    try:
        deciding.decide_item(caller=page.caller, item=item, answers=read_answers(page.request.POST))
    except ServiceError as error:
        return _render_item(page, queue_id, item_id, error=error)
    undo = page.url("review_take_back", queue.pk, item.pk)
    return page.done("Decided: the reward follows", to=page.url("review_results", queue.pk), undo=undo)


@project_page("POST", role=Role.TRAINER)
def take_back_decision(page: Page, queue_id: str, item_id: str) -> HttpResponse:
    """Undo a decision: the item is to decide anew."""
    queue = queries.find_queue(page.project, page.caller, queue_id)
    try:
        item = queries.find_item(queue, page.caller, item_id)
        deciding.take_back_decision(caller=page.caller, item=item)
    except ServiceError as error:
        return _render_item(page, queue_id, item_id, error=error)
    words = "Taken back: what reviewers said counts again, and the item is to decide"
    return page.done(words, to=page.url("review_item", queue.pk, item.pk))


@project_page("POST", role=Role.REVIEWER)
def ask_again(page: Page, queue_id: str, item_id: str) -> HttpResponse:
    """Ask for one more review of an item."""
    queue = queries.find_queue(page.project, page.caller, queue_id)
    item = deciding.ask_again(caller=page.caller, item=queries.find_item(queue, page.caller, item_id))
    return page.done(tell_who_is_asked(item), to=page.url("review_item", queue.pk, item_id))


@project_page("POST", role=Role.TRAINER)
def ask_skipped(page: Page, queue_id: str) -> HttpResponse:
    """Have stuck items be given again to those who skipped them."""
    queue = queries.find_queue(page.project, page.caller, queue_id)
    n = waiting.ask_all_again(caller=page.caller, queue=queue)
    words = f"{count_of(n, 'item')} may be given again to those who skipped {'it' if n == 1 else 'them'}"
    return page.done(words, to=page.url("review_results", queue.pk))


@project_page("POST", role=Role.TRAINER)
def close_stuck(page: Page, queue_id: str) -> HttpResponse:
    """Be content with the reviews that stuck items have."""
    queue = queries.find_queue(page.project, page.caller, queue_id)
    n = waiting.close_stuck(caller=page.caller, queue=queue)
    return page.done(f"{count_of(n, 'item')} closed", to=page.url("review_results", queue.pk))


@project_page("POST", role=Role.REVIEWER)
def collect(page: Page, queue_id: str) -> HttpResponse:
    """Add what is done or decided to a dataset."""
    queue = queries.find_queue(page.project, page.caller, queue_id)
    dataset = find_dataset(caller=page.caller, dataset_id=page.request.POST.get("dataset", ""), role=Role.REVIEWER)
    n = add_reviewed_to_dataset(caller=page.caller, queue=queue, dataset=dataset)
    return page.done(f"{n} added to {dataset.name}", to=page.url("dataset", dataset.pk))
