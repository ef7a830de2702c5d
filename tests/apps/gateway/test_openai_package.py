"""The unmodified `openai` package, as an agent's author would use it."""

import json
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionToolParam

from apps.trajectories.models import Exchange
from tests.apps.gateway.conftest import GatewayServer, wait_until
from tests.fakes.engine import FakeEngine

TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
]


@pytest.fixture
def client(gateway: GatewayServer, secret: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret, max_retries=0) as client:
        yield client


def test_a_conversation_with_a_tool(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script.tool = {"name": "get_weather", "arguments": {"city": "Oslo"}}
    first = client.chat.completions.create(model="default", messages=[{"role": "user", "content": "hi"}], tools=TOOLS)
    message = first.choices[0].message
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    engine.script.tool = None
    second = client.chat.completions.create(
        model="default",
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},  # type: ignore[list-item]
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ],
        tools=TOOLS,
    )
    assert second.choices[0].message.content == "Hello 🦦 you"
    assert second.usage is not None
    assert second.usage.completion_tokens == 5
    assert Exchange.objects.count() == 2


def test_a_stream_with_the_packages_own_accumulator(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script.tool = {"name": "get_weather", "arguments": {"city": "Oslo", "unit": "°C"}}
    with client.chat.completions.stream(
        model="otter",
        messages=[{"role": "user", "content": "hi"}],
        tools=TOOLS,
        stream_options={"include_usage": True},
    ) as stream:
        final = stream.get_final_completion()

    assert final.choices[0].message.tool_calls is not None
    (call,) = final.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Oslo", "unit": "°C"}
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage is not None
    exchange = Exchange.objects.get()
    kept = json.loads(bytes(exchange.response or b""))
    assert kept["choices"][0]["message"]["tool_calls"][0]["id"] == call.id
    assert exchange.is_exact


def test_a_stream_that_breaks_is_an_exception(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script.break_after = 3
    engine.script.pause_s = 0.02
    stream = client.chat.completions.create(model="otter", messages=[{"role": "user", "content": "hi"}], stream=True)

    with pytest.raises(openai.APIError, match="broke off"):
        list(stream)


def test_errors_are_the_packages_own(client: openai.OpenAI, gateway: GatewayServer) -> None:
    with pytest.raises(openai.NotFoundError, match="otter"):
        client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="otter", messages=[{"role": "user", "content": "x" * 30_000}])
    assert caught.value.code == "context_length_exceeded"
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="claw-no", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_models_can_be_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["otter", "default"]
    assert client.models.retrieve("otter").id == "otter"


def test_leaving_a_stream_early_is_noticed(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script.pieces = ["x"] * 500
    engine.script.pause_s = 0.02
    with client.chat.completions.create(
        model="otter", messages=[{"role": "user", "content": "hi"}], stream=True
    ) as stream:
        next(iter(stream))

    wait_until(lambda: Exchange.objects.filter(status="aborted").exists())
