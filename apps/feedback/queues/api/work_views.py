"""Reviewing over REST: take an item, submit, skip, put back, undo; ask for another opinion, decide."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import Caller
from apps.accounts.api.authentication import caller_of
from apps.core.serializers import read_fields
from apps.feedback.queues import deciding, results, services, waiting, working
from apps.feedback.queues.api.serializers import (
    AnswersBodySerializer,
    ItemWithReviewsSerializer,
    NextBodySerializer,
    NextSerializer,
    QueueItemSerializer,
    ReasonBodySerializer,
    ReviewSerializer,
    SubmitBodySerializer,
    show_items,
)
from apps.feedback.queues.models import ItemState, QueueItem, Review


class NextView(APIView):
    """The way into a queue."""

    @extend_schema(request=NextBodySerializer, responses=NextSerializer)
    def post(self, request: Request, queue_id: str) -> Response:
        """Return the item that the caller has open in the queue, or reserve the next one."""
        caller = caller_of(request)
        body = read_fields(NextBodySerializer, request.data)
        queue = services.find_queue(caller=caller, queue_id=queue_id)
        review = working.take_review(caller=caller, queue=queue, besides=body["besides"])
        left = results.count_left_for(queue, services.require_reviewer(caller, queue))
        return Response({"review": ReviewSerializer(review).data if review else None, "left": left})


class ReviewView(APIView):
    """One's own review."""

    @extend_schema(responses=ReviewSerializer)
    def get(self, request: Request, review_id: str) -> Response:
        """Return it; others' are in their item."""
        return Response(ReviewSerializer(working.find_review(caller=caller_of(request), review_id=review_id)).data)


class SubmitView(APIView):
    """Giving a review."""

    @extend_schema(request=SubmitBodySerializer, responses=ReviewSerializer)
    def post(self, request: Request, review_id: str) -> Response:
        """Submit it: the answers become labels, or a comparison. Sending the same again is fine."""
        caller = caller_of(request)
        body = read_fields(SubmitBodySerializer, request.data)
        review = working.find_review(caller=caller, review_id=review_id)
        given = working.submit_review(caller=caller, review=review, said=working.Submission(**body))
        return Response(ReviewSerializer(given).data)


class SkipView(APIView):
    """Leaving an item to others."""

    @extend_schema(request=ReasonBodySerializer, responses=ReviewSerializer)
    def post(self, request: Request, review_id: str) -> Response:
        """Skip the item: it is not offered to the caller again."""
        caller, review, reason = _read(request, review_id)
        return Response(ReviewSerializer(working.skip_review(caller=caller, review=review, reason=reason)).data)


class RequeueView(APIView):
    """Putting an item back."""

    @extend_schema(request=ReasonBodySerializer, responses=ReviewSerializer)
    def post(self, request: Request, review_id: str) -> Response:
        """Put the item back to the end of the queue."""
        caller, review, reason = _read(request, review_id)
        return Response(ReviewSerializer(working.put_back_review(caller=caller, review=review, reason=reason)).data)


def _read(request: Request, review_id: str) -> tuple[Caller, Review, str]:
    caller = caller_of(request)
    reason = read_fields(ReasonBodySerializer, request.data)["reason"]
    return caller, working.find_review(caller=caller, review_id=review_id), reason


class UndoView(APIView):
    """The undo of a review or a skip."""

    @extend_schema(request=None, responses=ReviewSerializer)
    def post(self, request: Request, review_id: str) -> Response:
        """Take it back: the item is open in the caller's hands again. 409 when that is too late."""
        caller = caller_of(request)
        review = working.find_review(caller=caller, review_id=review_id)
        return Response(ReviewSerializer(working.undo_review(caller=caller, review=review)).data)


class ItemView(APIView):
    """One item of a queue."""

    @extend_schema(responses=ItemWithReviewsSerializer)
    def get(self, request: Request, item_id: str) -> Response:
        """Return it, with the reviews that the caller may see."""
        caller = caller_of(request)
        item = services.find_item(caller=caller, item_id=item_id)
        reviews = results.read_reviews(item, caller=caller)
        shown = None if reviews is None else ReviewSerializer(reviews, many=True).data
        askable = waiting.list_askable(item) if item.state == ItemState.OPEN else []
        return Response({**_show(item, caller), "askable": [user.email for user in askable], "reviews": shown})


class AskAgainView(APIView):
    """A further opinion."""

    @extend_schema(request=None, responses=QueueItemSerializer)
    def post(self, request: Request, item_id: str) -> Response:
        """Ask for one more review of the item."""
        caller = caller_of(request)
        item = services.find_item(caller=caller, item_id=item_id)
        return Response(_show(deciding.ask_again(caller=caller, item=item), caller))


class DecideView(APIView):
    """A decision between reviews that disagree."""

    @extend_schema(request=AnswersBodySerializer, responses=QueueItemSerializer)
    def post(self, request: Request, item_id: str) -> Response:
        """Decide: what the decider says in the disputed fields stands instead of what reviewers said."""
        caller = caller_of(request)
        body = read_fields(AnswersBodySerializer, request.data)
        item = services.find_item(caller=caller, item_id=item_id)
        return Response(_show(deciding.decide_item(caller=caller, item=item, answers=body["answers"]), caller))


class TakeBackDecisionView(APIView):
    """The undo of a decision."""

    @extend_schema(request=None, responses=QueueItemSerializer)
    def post(self, request: Request, item_id: str) -> Response:
        """Take a decision back: the reviewers have their word again, and the item is to decide anew."""
        caller = caller_of(request)
        item = services.find_item(caller=caller, item_id=item_id)
        return Response(_show(deciding.take_back_decision(caller=caller, item=item), caller))


def _show(item: QueueItem, caller: Caller) -> dict[str, object]:
    [shown] = show_items(item.queue, [item], caller=caller)
    return shown
