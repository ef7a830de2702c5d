"""However a client spells its base URL, its calls arrive; what is nobody's path is refused in the client's dialect."""

import httpx
import pytest

from apps.accounts.models import ApiKey
from apps.gateway.paths import find_inner_path
from apps.trajectories.models import Exchange
from tests.apps.gateway.conftest import GatewayServer, chat
from tests.apps.gateway.messages_client import ask
from tests.factories.trajectories import TrajectoryFactory

ANTHROPIC = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize(
    ("path", "inner"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/v1/v1/messages", "/v1/messages"),
        ("/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/responses", "/v1/responses"),
        ("/responses/resp_1", "/v1/responses/resp_1"),
        ("/completions", "/v1/completions"),
        ("/embeddings", "/v1/embeddings"),
        ("/models", "/v1/models"),
        ("/models/otter@v3", "/v1/models/otter@v3"),
        ("/v1", "/v1"),
        ("/v1/anything", "/v1/anything"),
        ("/api/hello", "/api/hello"),
        ("/healthz", "/healthz"),
        ("/", None),
        ("/v1x", None),
        ("/modelsx", None),
        ("/chat", None),
        ("/p/shop/models", None),
        ("/api/v1/models", None),
    ],
)
def test_paths_have_one_full_spelling(path: str, inner: str | None) -> None:
    assert find_inner_path(path) == inner


@pytest.mark.parametrize("below_trajectory", [False, True])
@pytest.mark.parametrize("prefix", ["/v1", "", "/v1/v1", "/", "/v1/", "//v1/"])
def test_every_base_url_serves_every_dialect(
    gateway: GatewayServer, http: httpx.Client, key: ApiKey, prefix: str, *, below_trajectory: bool
) -> None:
    trajectory = TrajectoryFactory.create(agent=key.agent)
    base = gateway.url + (f"/t/{trajectory.id}" if below_trajectory else "") + prefix

    assert http.post(f"{base}/chat/completions", json=chat()).json()["object"] == "chat.completion"
    assert http.post(f"{base}/messages", json=ask()).json()["type"] == "message"
    assert http.post(f"{base}/messages/count_tokens", json=ask()).json() == {"input_tokens": 10}
    assert http.get(f"{base}/models").json()["object"] == "list"
    assert http.get(f"{base}/models/otter").json()["id"] == "otter"
    named = {exchange.trajectory_id for exchange in Exchange.objects.all()}
    assert named == {trajectory.id if below_trajectory else ""}


@pytest.mark.parametrize("path", ["/", "/api/hello", "/t/traj_1/", "/t/traj_1/api/hello"])
def test_who_asks_whether_anybody_is_there_is_answered(gateway: GatewayServer, path: str) -> None:
    assert httpx.head(gateway.url + path).status_code == 200


def test_hello_can_be_read(gateway: GatewayServer) -> None:
    assert httpx.get(f"{gateway.url}/api/hello").json() == {"message": "hello"}
    assert httpx.post(f"{gateway.url}/api/hello").status_code == 405


def test_a_browser_gets_the_rest(http: httpx.Client) -> None:
    assert http.get("/").text == "rest"
    assert http.get("/p/shop/models").text == "rest"


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1", "/t/traj_1/nothing", "/t/traj_1/v1/nothing", "/models/"])
def test_unknown_paths_are_refused_in_openais_shape(http: httpx.Client, path: str) -> None:
    response = http.post(path, json={})

    assert response.status_code in {404, 405}
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/v1/messages/batches", {}), ("/t/traj_1/messages/x", {}), ("/v1/complete", ANTHROPIC), ("/t/x/y", ANTHROPIC)],
)
def test_unknown_paths_are_refused_in_anthropics_shape(http: httpx.Client, path: str, headers: dict[str, str]) -> None:
    response = http.post(path, json={}, headers=headers)

    assert response.status_code == 404
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == "not_found_error"
    assert "POST" in response.json()["error"]["message"]


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/messages"), ("DELETE", "/messages/count_tokens")])
def test_wrong_methods_are_refused_in_anthropics_shape(http: httpx.Client, method: str, path: str) -> None:
    response = http.request(method, path)

    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert "use POST" in response.json()["error"]["message"]


def test_wrong_methods_are_refused_in_openais_shape(http: httpx.Client) -> None:
    response = http.get("/chat/completions")

    assert response.status_code == 405
    assert response.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(("path", "is_anthropic"), [("/v1/messages", True), ("/v1/chat/completions", False)])
def test_a_fault_of_ours_is_told_in_the_callers_shape(
    gateway: GatewayServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, *, is_anthropic: bool
) -> None:
    async def break_down(*_args: object) -> None:
        raise RuntimeError("our fault")

    assert gateway.door._desk is not None
    monkeypatch.setattr(gateway.door._desk, "identify", break_down)

    response = http.post(path, json=ask())

    assert response.status_code == 500
    body = response.json()
    assert body["error"]["type"] == ("api_error" if is_anthropic else "server_error")
    assert (body.get("type") == "error") is is_anthropic
    assert response.headers["request-id"].startswith("exch_")
