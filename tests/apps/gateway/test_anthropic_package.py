"""The unmodified `anthropic` package, as an agent's author would use it."""

from collections.abc import Iterator

import anthropic
import pytest
from anthropic.types import Message, MessageParam, ToolParam, ToolUseBlock
from pytest_django.fixtures import Settings

from apps.trajectories.models import Exchange
from tests.apps.gateway.conftest import GatewayServer, wait_until
from tests.fakes.engine import FakeEngine

HELLO: list[MessageParam] = [{"role": "user", "content": "hi"}]
TOOLS: list[ToolParam] = [{"name": "get_weather", "input_schema": {"type": "object", "properties": {}}}]
OSLO = {"city": "Oslo", "unit": "°C"}


@pytest.fixture
def client(gateway: GatewayServer, secret: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=secret, max_retries=0) as client:
        yield client


def assert_strict(message: Message) -> None:
    """The package reads leniently; its own model, asked strictly, agrees."""
    Message.model_validate_json(message.model_dump_json(), strict=True)
    assert message.usage.input_tokens == 11


def test_a_conversation_with_a_tool(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.script.reasoning = "hm"
    engine.script.tool = {"name": "get_weather", "arguments": OSLO}
    first = client.messages.create(model="otter", max_tokens=99, messages=HELLO, tools=TOOLS)
    assert_strict(first)
    assert first.stop_reason == "tool_use"
    thought, call = first.content
    assert thought.type == "thinking"
    assert isinstance(call, ToolUseBlock)
    assert call.input == OSLO
    engine.script.tool = None
    result: MessageParam = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}],
    }
    second = client.messages.create(
        model="otter", max_tokens=99, messages=[*HELLO, first.to_param(), result], tools=TOOLS
    )
    assert_strict(second)
    assert second.content[-1].type == "text"
    assert second.content[-1].text == "Hello 🦦 you"
    assert second._request_id == Exchange.objects.latest("id").id
    (sent,) = [message for message in engine.calls[1].body["messages"] if message["role"] == "tool"]
    assert sent == {"role": "tool", "tool_call_id": call.id, "content": "sunny"}


def test_a_stream_with_the_packages_own_accumulator(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.script.reasoning = "hm"
    engine.script.tool = {"name": "get_weather", "arguments": OSLO}
    engine.script.more_tools = [{"name": "get_weather", "arguments": {}}]
    with client.messages.stream(model="otter", max_tokens=99, messages=HELLO, tools=TOOLS) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()

    assert {"thinking", "signature", "input_json", "message_stop"} <= kinds
    thought, *calls = final.content
    assert thought.type == "thinking"
    assert (thought.thinking, bool(thought.signature)) == ("hm", True)
    assert [call.input for call in calls if isinstance(call, ToolUseBlock)] == [OSLO, {}]
    assert final.stop_reason == "tool_use"
    assert final.usage.input_tokens == 11
    assert final.usage.output_tokens > 0
    assert Exchange.objects.get().is_exact


def test_text_is_streamed(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="otter", max_tokens=99, messages=HELLO) as stream:
        assert "".join(stream.text_stream) == "Hello 🦦 you"
        assert_strict(Message.model_validate(stream.get_final_message().model_dump()))


def test_the_beta_methods_work_too(client: anthropic.Anthropic) -> None:
    message = client.beta.messages.create(
        model="otter", max_tokens=99, messages=[{"role": "user", "content": "hi"}], betas=["context-1m-2025-08-07"]
    )

    assert message.content[0].type == "text"


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    assert client.messages.count_tokens(model="otter", messages=HELLO, tools=TOOLS).input_tokens == 110


def test_models_can_be_listed(client: anthropic.Anthropic) -> None:
    models = list(client.models.list(limit=5))

    assert [model.id for model in models] == ["otter", "default"]
    assert client.models.retrieve("otter").created_at.tzinfo is not None
    assert type(models[0]).model_validate(models[0].model_dump(), strict=True).type == "model"
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nobody")


def test_the_base_url_may_end_in_v1(gateway: GatewayServer, secret: str) -> None:
    with anthropic.Anthropic(base_url=f"{gateway.url}/v1", auth_token=secret, max_retries=0) as client:
        assert client.messages.create(model="otter", max_tokens=9, messages=HELLO).stop_reason == "end_turn"


def test_a_stream_that_breaks_is_an_exception(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.script.break_after = 3
    engine.script.pause_s = 0.02

    with (
        pytest.raises(anthropic.APIStatusError, match="broke off"),
        client.messages.stream(model="otter", max_tokens=9, messages=HELLO) as stream,
    ):
        stream.until_done()


def test_errors_are_the_packages_own(
    client: anthropic.Anthropic, gateway: GatewayServer, engine: FakeEngine, settings: Settings
) -> None:
    with pytest.raises(anthropic.NotFoundError, match="otter"):
        client.messages.create(model="claude", max_tokens=9, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as caught:
        client.messages.create(model="otter", max_tokens=9, messages=[{"role": "user", "content": "x" * 30_000}])
    assert caught.value.request_id is not None
    with (
        anthropic.Anthropic(base_url=gateway.url, api_key="claw-no", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.models.list()
    settings.CLAW = settings.CLAW.model_copy(update={"engine_wait_s": 0.1})
    engine.script.failures = [503] * 9
    with pytest.raises(anthropic.InternalServerError) as away:
        client.messages.create(model="otter", max_tokens=9, messages=HELLO)
    assert away.value.response.headers["retry-after"]


def test_leaving_a_stream_early_is_noticed(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.script.pieces = ["x"] * 500
    engine.script.pause_s = 0.02
    with client.messages.stream(model="otter", max_tokens=9, messages=HELLO) as stream:
        next(iter(stream.text_stream))

    wait_until(lambda: Exchange.objects.filter(status="aborted").exists())
