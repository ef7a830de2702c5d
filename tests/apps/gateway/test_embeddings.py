"""Embeddings: passed on in the encoding that the client wants, or a 404 that says what to do; never captured."""

import base64
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from apps.accounts.models import ApiKey
from apps.trajectories.models import Exchange
from tests.apps.gateway.conftest import GatewayServer
from tests.apps.gateway.test_refusals import assert_error
from tests.factories.registry import ProviderFactory, TeacherFactory
from tests.fakes.engine import FakeEngine

PATH = "/v1/embeddings"


def embedding(**fields: Any) -> dict[str, Any]:
    """Return a small request."""
    return {"model": "otter", "input": "hello", **fields}


@pytest.fixture
def embedder(engine: FakeEngine) -> FakeEngine:
    """The engine, serving embeddings of four numbers."""
    engine.script.n_dimensions = 4
    return engine


@pytest.fixture
def client(gateway: GatewayServer, secret: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret, max_retries=0) as client:
        yield client


def unpack(text: str) -> list[float]:
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


@pytest.mark.parametrize("speaks_base64", [True, False])
@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_vectors_come_in_the_encoding_that_was_asked_for(
    http: httpx.Client, embedder: FakeEngine, encoding: str | None, *, speaks_base64: bool
) -> None:
    embedder.script.speaks_base64 = speaks_base64
    response = http.post(PATH, json=embedding(input=["a", "b"], encoding_format=encoding, user="alice"))

    body = response.json()
    assert response.status_code == 200, response.text
    found = [item["embedding"] for item in body["data"]]
    vectors = [unpack(text) for text in found] if encoding == "base64" else found
    assert vectors == [[0, 0.25, 0.5, 0.75], [1, 1.25, 1.5, 1.75]]
    assert [(item["object"], item["index"]) for item in body["data"]] == [("embedding", 0), ("embedding", 1)]
    assert (body["object"], body["model"]) == ("list", "otter")
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert set(body) == {"object", "data", "model", "usage"}
    assert response.headers["x-request-id"].startswith("exch_")
    assert embedder.counted[0]["model"] == "tiny"
    assert "user" not in embedder.counted[0]
    assert not Exchange.objects.exists()


@pytest.mark.parametrize("given", ["a", ["a", "b"], [5, 6], [[5, 6], [7]]])
def test_every_form_of_input_is_passed_on(http: httpx.Client, embedder: FakeEngine, given: Any) -> None:
    assert http.post(PATH, json=embedding(input=given, dimensions=2)).status_code == 200

    assert embedder.counted[0]["input"] == given
    assert embedder.counted[0]["dimensions"] == 2


def test_the_unmodified_package_asks_for_base64_and_gets_numbers(client: openai.OpenAI, embedder: FakeEngine) -> None:
    answer = client.embeddings.create(model="otter", input=["a", "b"])

    assert embedder.counted[0]["encoding_format"] == "base64"
    assert answer.data[1].embedding == [1, 1.25, 1.5, 1.75]


@pytest.mark.parametrize("model", ["otter", "text-embedding-3-small"])
def test_where_no_engine_serves_them_it_says_what_to_do(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError, match="add a model that does") as caught:
        client.embeddings.create(model=model, input="hello")

    assert (caught.value.code, caught.value.param) == ("embeddings_not_served", "model")
    assert model in caught.value.message
    assert not Exchange.objects.exists()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", 5]}, "input[1]"),
        ({"input": [[5], ["a"]]}, "input[1]"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"encoding_format": ["float"]}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
    ],
)
def test_it_names_the_field_at_fault(
    http: httpx.Client, embedder: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    response = http.post(PATH, json=embedding(**fields))

    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert f"`{param}`" in response.json()["error"]["message"]
    assert embedder.counted == []


def test_it_refuses_strangers_other_methods_and_what_is_no_json(http: httpx.Client, gateway: GatewayServer) -> None:
    assert_error(httpx.post(gateway.url + PATH, json=embedding()), status=401, code="invalid_api_key")
    assert_error(http.get(PATH), status=405, code="method_not_allowed")
    assert_error(http.post(PATH, content=b"["), status=400, code="invalid_json")


def test_a_teacher_of_the_project_serves_them_under_its_own_name(key: ApiKey, client: openai.OpenAI) -> None:
    with FakeEngine() as elsewhere:
        elsewhere.script.n_dimensions = 4
        provider = ProviderFactory.create(project=key.agent.project, base_url=f"{elsewhere.url}/v1")
        TeacherFactory.create(engine=provider, name="text-embedding-3-small", model="vendor/small")
        answer = client.embeddings.create(model="text-embedding-3-small", input="hello")

    assert elsewhere.counted[0]["model"] == "vendor/small"
    assert answer.model == "text-embedding-3-small"
    assert answer.data[0].embedding == [0, 0.25, 0.5, 0.75]


def test_another_teams_teacher_is_not_there(client: openai.OpenAI) -> None:
    TeacherFactory.create(name="text-embedding-3-small")

    with pytest.raises(openai.NotFoundError, match="add a model that does"):
        client.embeddings.create(model="text-embedding-3-small", input="hello")


def test_a_passing_fault_is_tried_again(http: httpx.Client, embedder: FakeEngine) -> None:
    embedder.script.failures = [503]

    assert http.post(PATH, json=embedding()).status_code == 200


def test_an_over_long_input_gets_the_engines_own_error(http: httpx.Client, embedder: FakeEngine) -> None:
    response = http.post(PATH, json=embedding(input="x" * 30_000))

    assert_error(response, status=400, code="context_length_exceeded", param="input")


def test_a_client_that_leaves_leaves_no_trouble(http: httpx.Client, embedder: FakeEngine) -> None:
    embedder.script.first_pause_s = 1.0
    with pytest.raises(httpx.ReadTimeout):
        http.post(PATH, json=embedding(), timeout=0.2)
    embedder.script.first_pause_s = 0.0

    assert http.post(PATH, json=embedding()).status_code == 200
