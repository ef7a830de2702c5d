"""Errors of the REST API in one shape."""

from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework import exceptions

from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound, ServiceError, TooMany, Unavailable, first_of
from apps.core.problems import CONTENT_TYPE, handle_exception


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ServiceError("x"), 400, "invalid_request"),
        (InvalidInput("x"), 400, "invalid_input"),
        (NotFound("x"), 404, "not_found"),
        (Forbidden("x"), 403, "forbidden"),
        (Conflict("x"), 409, "conflict"),
        (Unavailable("x"), 503, "unavailable"),
        (Http404(), 404, "not_found"),
        (PermissionDenied(), 403, "permission_denied"),
        (exceptions.NotAuthenticated(), 401, "not_authenticated"),
        (exceptions.MethodNotAllowed("PUT"), 405, "method_not_allowed"),
        (exceptions.ParseError(), 400, "parse_error"),
    ],
)
def test_every_error_is_a_problem(error: Exception, status: int, code: str) -> None:
    response = handle_exception(error, {})
    assert response is not None
    assert (response.status_code, response.data["code"], response.data["status"]) == (status, code, status)
    assert response.content_type == CONTENT_TYPE


def test_a_bad_field_is_named() -> None:
    response = handle_exception(exceptions.ValidationError({"value": ["too large"]}), {})
    assert response is not None
    assert (response.data["field"], response.data["detail"]) == ("value", "value: too large")


def test_all_that_is_wrong_is_told_by_field() -> None:
    faults = [
        InvalidInput("low: too low", field="low"),
        Conflict("taken", field="name"),
        InvalidInput("odd", field="low"),
    ]
    response = handle_exception(first_of(faults), {})
    assert response is not None
    assert (response.data["status"], response.data["field"], response.data["detail"]) == (400, "low", "low: too low")
    assert response.data["errors"] == {"low": ["too low", "odd"], "name": ["taken"]}


def test_a_time_to_try_again_is_a_header() -> None:
    response = handle_exception(Conflict("later", retry_after_s=2), {})
    assert response is not None
    assert response["Retry-After"] == "2"


@pytest.mark.parametrize("kind", [TooMany, Unavailable])
def test_what_passes_says_when_to_come_again(kind: type[ServiceError]) -> None:
    response = handle_exception(kind("later"), {})
    assert response is not None
    assert response["Retry-After"] == "5"


def test_a_bug_is_not_dressed_up() -> None:
    nothing: Any = handle_exception(ZeroDivisionError(), {})
    assert nothing is None


def test_what_was_sent_is_not_repeated_at_length() -> None:
    long = "x" * 1_000_000
    told: Any = {"action": [f'"{long}" is no choice'], "more": {0: [long]}, long: ["unknown field"]}
    response = handle_exception(exceptions.ValidationError(told), {})
    assert response is not None
    assert len(str(response.data)) < 5000
    assert response.data["detail"].startswith('action: "xxx')
