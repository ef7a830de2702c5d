"""Renders errors of the REST API as problem JSON (RFC 9457). Knows nothing of what went wrong but the error itself."""

from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import exception_handler

from apps.core.errors import ServiceError

CONTENT_TYPE = "application/problem+json"
LONGEST_TEXT, LONGEST_NAME = 1000, 200  # of what an answer repeats of a body
MOST_FAULTS = 100


def handle_exception(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler: services' errors and DRF's own, in one shape."""
    if isinstance(error, ServiceError):
        headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s is not None else None
        return problem(
            status=error.status,
            code=error.code,
            detail=error.message,
            field=error.field,
            errors=_list_faults(error),
            headers=headers,
        )
    if isinstance(error, RequestDataTooBig):
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        return problem(status=413, code="request_too_large", detail=f"the body may have {limit} bytes")
    if isinstance(error, Http404):
        error = exceptions.NotFound()
    elif isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied()
    if not isinstance(error, exceptions.APIException):
        return None
    response = exception_handler(error, context)
    if response is None:
        return None
    return _render_api_exception(error, headers=dict(response.headers))


def _list_faults(error: ServiceError) -> dict[str, list[str]]:
    """Return by field all that is wrong, as DRF tells it."""
    told: dict[str, list[str]] = {}
    for fault in error.faults[:MOST_FAULTS]:
        told.setdefault(fault.field, []).append(fault.message.removeprefix(f"{fault.field}: "))
    return told


def _render_api_exception(error: exceptions.APIException, *, headers: dict[str, str]) -> Response:
    if isinstance(error, exceptions.ValidationError):
        fields = error.detail if isinstance(error.detail, dict) else {"": error.detail}
        first, reasons = next(iter(fields.items()), ("", ["invalid"]))
        detail = f"{first}: {_first_text(reasons)}" if first and first != "non_field_errors" else _first_text(reasons)
        shown = str(first)[:LONGEST_NAME]
        return problem(status=400, code="invalid_input", detail=_cut(detail), field=shown, errors=_cut(fields))
    codes = error.get_codes()
    code = codes if isinstance(codes, str) else "error"
    return problem(status=error.status_code, code=code, detail=_first_text(error.detail), headers=headers)


def _cut(told: Any) -> Any:
    """Return what went wrong, its texts cut: DRF's messages repeat what was sent, be it a megabyte."""
    if isinstance(told, dict):
        return {str(name)[:LONGEST_NAME]: _cut(inner) for name, inner in told.items()}
    if isinstance(told, (list, tuple)):
        return [_cut(inner) for inner in told]
    text = str(told)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def _first_text(detail: Any) -> str:
    while isinstance(detail, (list, tuple, dict)) and detail:
        detail = next(iter(detail.values())) if isinstance(detail, dict) else detail[0]
    return str(detail)


def problem(
    *,
    status: int,
    code: str,
    detail: str,
    field: str = "",
    errors: Any = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """Return one problem: `type`, `title`, `status`, `detail`, and `field` / `errors` where they help."""
    body = describe_problem(status=status, code=code, detail=detail)
    if field:
        body["field"] = field
    if errors:
        body["errors"] = errors
    return Response(body, status=status, content_type=CONTENT_TYPE, headers=headers)


def describe_problem(*, status: int, code: str, detail: str) -> dict[str, Any]:
    """Return what every problem says."""
    told = {"type": f"about:blank#{code}", "title": code.replace("_", " ")}
    return {**told, "status": status, "code": code, "detail": detail}
