"""Every answer of the gateway has a name by which people and logs can speak of it."""

import httpx
import pytest

from apps.core.ids import is_id


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/otter", 200),
        ("GET", "/v1/models/nobody", 404),
        ("GET", "/v1/responses/nobody", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("HEAD", "/api/hello", 200),
        ("HEAD", "/", 200),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
    ],
)
@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2023-06-01"}], ids=["openai", "anthropic"])
def test_what_is_no_model_call_is_named_too(
    http: httpx.Client, method: str, path: str, status: int, headers: dict[str, str]
) -> None:
    answers = [http.request(method, path, headers=headers) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [status, status]
    names = {answer.headers["x-request-id"] for answer in answers}
    assert len(names) == 2
    assert all(is_id(name, "req") for name in names)
    assert answers[0].headers["request-id"] == answers[0].headers["x-request-id"]
    if status != 200 and headers:
        assert answers[0].json()["request_id"] == answers[0].headers["request-id"]


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/embeddings"]
)
def test_calls_are_named_by_their_exchange(http: httpx.Client, path: str) -> None:
    response = http.post(path, json={})

    assert response.status_code == 400
    assert is_id(response.headers["x-request-id"], "exch")
