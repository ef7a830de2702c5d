"""Stops a platform that calls itself by way of a name or a proxy that it cannot see through."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, JsonResponse

from apps.core.outward import MARK_HEADER, own_mark

LOOP_DETECTED = 508


class LoopMiddleware:
    """Answers a call that bears our own mark with 508 and the mark: `outward.post_outward` knows it again."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.headers.get(MARK_HEADER) != own_mark():
            return self.get_response(request)
        body = {"status": LOOP_DETECTED, "code": "loop", "detail": "this platform has called itself"}
        headers = {MARK_HEADER: own_mark()}
        return JsonResponse(body, status=LOOP_DETECTED, headers=headers, content_type="application/problem+json")
