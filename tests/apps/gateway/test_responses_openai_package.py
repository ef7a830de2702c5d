"""The unmodified `openai` package on `/v1/responses`, as an agent's author would use it."""

import json
from collections.abc import Iterator

import openai
import pytest
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel

from apps.trajectories.models import Exchange
from tests.apps.gateway.conftest import GatewayServer
from tests.apps.gateway.test_to_the_pool import assert_exact, fold
from tests.fakes.engine import FakeEngine

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}


class Place(BaseModel):
    city: str


@pytest.fixture
def client(gateway: GatewayServer, secret: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret, max_retries=0) as client:
        yield client


def test_a_conversation_with_a_tool(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script.tool = {"name": "get_weather", "arguments": {"city": "Oslo"}}
    first = client.responses.create(model="default", input="hi", tools=[WEATHER])
    (call,) = first.output
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"city": "Oslo"}
    engine.script.tool = None
    second = client.responses.create(
        model="default",
        input=[
            {"role": "user", "content": "hi"},
            call.model_dump(exclude_none=True),  # type: ignore[list-item]
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
        ],
        tools=[WEATHER],
    )
    assert second.output_text == "Hello 🦦 you"
    third = client.responses.create(model="default", input="and?", previous_response_id=second.id)
    assert client.responses.retrieve(third.id).output_text == third.output_text
    views = fold()
    assert_exact(views, engine)
    assert [view.row.parent_id for view in views] == [None, views[0].row.id, views[1].row.id]


def test_a_stream_with_the_packages_own_accumulator(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script.reasoning = "Which city?"
    engine.script.tool = {"name": "get_weather", "arguments": {"city": "Oslo", "unit": "°C"}}
    engine.script.more_tools = [{"name": "get_weather", "arguments": {"city": "Rome"}}]
    with client.responses.stream(model="otter", input="hi", tools=[WEATHER]) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()

    thought, first, second = final.output
    assert thought.type == "reasoning"
    assert first.type == second.type == "function_call"
    assert json.loads(first.arguments) == {"city": "Oslo", "unit": "°C"}
    assert snapshots[-1] == second.arguments
    assert final.usage is not None
    kept = json.loads(bytes(Exchange.objects.get().response or b""))
    assert kept["output"][1]["call_id"] == first.call_id


def test_text_is_streamed_piece_by_piece(client: openai.OpenAI) -> None:
    stream = client.responses.create(model="otter", input="hi", stream=True)
    assert [event.delta for event in stream if event.type == "response.output_text.delta"] == [
        "Hel",
        "lo",
        " 🦦",
        " you",
    ]


def test_structured_output_is_parsed(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script.pieces = ['{"city":', ' "Oslo"}']
    parsed = client.responses.parse(model="otter", input="where?", text_format=Place)
    assert parsed.output_parsed == Place(city="Oslo")
    asked = engine.calls[-1].body["response_format"]
    assert asked["json_schema"]["strict"] is True
    with client.responses.stream(model="otter", input="where?", text_format=Place) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_parsed == Place(city="Oslo")


async def test_the_asynchronous_client(gateway: GatewayServer, secret: str, engine: FakeEngine) -> None:
    engine.script.tool = {"name": "patch", "arguments": {"input": "*** Begin"}}
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=secret, max_retries=0) as client:
        whole = await client.responses.create(model="otter", input="hi", tools=[{"type": "custom", "name": "patch"}])
        async with client.responses.stream(
            model="otter", input="hi", tools=[{"type": "custom", "name": "patch"}]
        ) as stream:
            streamed = await stream.get_final_response()
    for response in (whole, streamed):
        (call,) = response.output
        assert call.type == "custom_tool_call"
        assert call.input == "*** Begin"


def test_a_stream_that_breaks_is_an_exception(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script.break_after = 3
    engine.script.pause_s = 0.02
    stream = client.responses.create(model="otter", input="hi", stream=True)
    with pytest.raises(openai.APIError, match="broke off"):
        list(stream)


def test_errors_are_the_packages_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="otter"):
        client.responses.create(model="gpt-5", input="hi")
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="otter", input="x" * 30_000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.create(model="otter", input="hi", background=True)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_unknown")
