"""Review queues over REST: making and changing them, what is in them, what came out."""

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import find_project
from apps.accounts.api.authentication import caller_of
from apps.accounts.models import Role
from apps.core.paging import page_newest_first
from apps.core.serializers import PageQuerySerializer, ProjectQuerySerializer, read_fields, show_page
from apps.feedback.queues import results, services, waiting
from apps.feedback.queues.api.serializers import (
    AddedItemsSerializer,
    ChangedItemsSerializer,
    IdsBodySerializer,
    IntoDatasetBodySerializer,
    ItemPageSerializer,
    ItemsQuerySerializer,
    NewQueueSerializer,
    QueueChangeSerializer,
    QueueEventsSerializer,
    QueuePageSerializer,
    QueueResultsSerializer,
    QueueSerializer,
    SinceQuerySerializer,
    WhomBodySerializer,
    show_items,
)
from apps.feedback.queues.collecting import add_reviewed_to_dataset
from apps.feedback.queues.events import list_events
from apps.feedback.queues.filling import add_trajectories
from apps.trajectories.blindness import find_hidden
from apps.trajectories.datasets.services import find_dataset


class QueuesView(APIView):
    """The project's review queues."""

    @extend_schema(operation_id="review_queues_list", parameters=[PageQuerySerializer], responses=QueuePageSerializer)
    def get(self, request: Request) -> Response:
        """List queues, newest first."""
        query = read_fields(PageQuerySerializer, request.query_params)
        rows = services.list_queues(find_project(caller_of(request), query.pop("project")))
        return Response(show_page(QueueSerializer, page_newest_first(rows.prefetch_related("reviewers"), **query)))

    @extend_schema(parameters=[ProjectQuerySerializer], request=NewQueueSerializer, responses={201: QueueSerializer})
    def post(self, request: Request) -> Response:
        """Make a queue; what its search finds comes into it in the background."""
        caller = caller_of(request)
        project = find_project(caller, read_fields(ProjectQuerySerializer, request.query_params)["project"])
        body = read_fields(NewQueueSerializer, request.data)
        queue = services.create_queue(caller=caller, project=project, settings=body)
        return Response(QueueSerializer(queue).data, status=status.HTTP_201_CREATED)


class QueueView(APIView):
    """One queue."""

    @extend_schema(responses=QueueSerializer)
    def get(self, request: Request, queue_id: str) -> Response:
        """Return the queue's settings."""
        queue = services.find_queue(caller=caller_of(request), queue_id=queue_id)
        return Response(QueueSerializer(queue).data)

    @extend_schema(request=QueueChangeSerializer, responses=QueueSerializer)
    def patch(self, request: Request, queue_id: str) -> Response:
        """Change what is named; `state` pauses, opens or archives it."""
        caller = caller_of(request)
        body = read_fields(QueueChangeSerializer, request.data)
        queue = services.find_queue(caller=caller, queue_id=queue_id)
        state = body.pop("state", None)
        if body or state is None:
            queue = services.change_queue(caller=caller, queue=queue, settings=body)
        if state is not None:
            queue = services.set_state(caller=caller, queue=queue, state=state)
        return Response(QueueSerializer(queue).data)


class ItemsView(APIView):
    """What is in a queue."""

    @extend_schema(parameters=[ItemsQuerySerializer], responses=ItemPageSerializer)
    def get(self, request: Request, queue_id: str) -> Response:
        """List items, newest first; `state=disputed` are those to decide."""
        caller = caller_of(request)
        query = read_fields(ItemsQuerySerializer, request.query_params)
        queue = services.find_queue(caller=caller, queue_id=queue_id)
        page = page_newest_first(results.list_items(queue, state=query.pop("state")), **query)
        items = show_items(queue, page.items, caller=caller)
        return Response({"items": items, "next_before": page.next_before})

    @extend_schema(request=IdsBodySerializer, responses={201: AddedItemsSerializer})
    def post(self, request: Request, queue_id: str) -> Response:
        """Add trajectories by hand; of a queue of pairs those that belong together become pairs."""
        caller = caller_of(request)
        body = read_fields(IdsBodySerializer, request.data)
        queue = services.find_queue(caller=caller, queue_id=queue_id)
        added = add_trajectories(caller=caller, queue=queue, ids=body["ids"])
        return Response({"added": added}, status=status.HTTP_201_CREATED)


class ResultsView(APIView):
    """What came out of a queue."""

    @extend_schema(responses=QueueResultsSerializer)
    def get(self, request: Request, queue_id: str) -> Response:
        """Return how far it is, who did how much, and how far people agree."""
        caller = caller_of(request)
        queue = services.find_queue(caller=caller, queue_id=queue_id, role=Role.REVIEWER)
        found = {
            "counts": results.count_items(queue),
            "waiting": waiting.read_waiting(queue),
            "progress": results.read_progress(queue),
            "agreement": results.read_agreement(queue, hidden=find_hidden(caller)),
        }
        return Response(QueueResultsSerializer(found).data)


class AskSkippedView(APIView):
    """A way on for what people skipped."""

    @extend_schema(request=WhomBodySerializer, responses=ChangedItemsSerializer)
    def post(self, request: Request, queue_id: str) -> Response:
        """Give what was skipped again: stuck items to all who skipped them, or what the caller skipped to them."""
        caller = caller_of(request)
        whom = read_fields(WhomBodySerializer, request.data)["whom"]
        queue = services.find_queue(caller=caller, queue_id=queue_id)
        ask = waiting.ask_me_again if whom == "me" else waiting.ask_all_again
        return Response({"items": ask(caller=caller, queue=queue)})


class CloseStuckView(APIView):
    """A way on for what nobody is left to review."""

    @extend_schema(request=None, responses=ChangedItemsSerializer)
    def post(self, request: Request, queue_id: str) -> Response:
        """Be content with the reviews that stuck items have: they are done, or disputed."""
        caller = caller_of(request)
        queue = services.find_queue(caller=caller, queue_id=queue_id)
        return Response({"items": waiting.close_stuck(caller=caller, queue=queue)})


class DatasetView(APIView):
    """From a queue to a dataset."""

    @extend_schema(request=IntoDatasetBodySerializer, responses=AddedItemsSerializer)
    def post(self, request: Request, queue_id: str) -> Response:
        """Add what is done or decided to a dataset."""
        caller = caller_of(request)
        body = read_fields(IntoDatasetBodySerializer, request.data)
        queue = services.find_queue(caller=caller, queue_id=queue_id, role=Role.REVIEWER)
        dataset = find_dataset(caller=caller, dataset_id=body["dataset"], role=Role.REVIEWER)
        return Response({"added": add_reviewed_to_dataset(caller=caller, queue=queue, dataset=dataset)})


class EventsView(APIView):
    """What happened in a queue."""

    @extend_schema(parameters=[SinceQuerySerializer], responses=QueueEventsSerializer)
    def get(self, request: Request, queue_id: str) -> Response:
        """List events after `since`, the oldest first."""
        since = read_fields(SinceQuerySerializer, request.query_params)["since"]
        queue = services.find_queue(caller=caller_of(request), queue_id=queue_id)
        found = {"items": list_events(queue.pk, since=since), "newest": queue.n_events}
        return Response(QueueEventsSerializer(found).data)
