"""What the chat template makes of every kind of message."""

from typing import Any

import pytest
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
ASK: Message = {"role": "user", "content": "What is the weather in Oslo?"}


def call(name: str, arguments: Any) -> Message:
    return {"type": "function", "id": "call1", "function": {"name": name, "arguments": arguments}}


class Render:
    """Renders messages to text as an engine would."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    def __call__(self, *messages: Message, tools: list[Message] | None = None, is_prompt: bool = False) -> str:
        text: str = self.tokenizer.apply_chat_template(
            list(messages), tools=tools, tokenize=False, add_generation_prompt=is_prompt
        )
        return text


@pytest.fixture
def render(tokenizer: PreTrainedTokenizerBase) -> Render:
    return Render(tokenizer)


def test_a_plain_exchange_is_chatml_without_a_system_prompt_of_its_own(render: Render) -> None:
    text = render(ASK, is_prompt=True)
    assert text == "<|im_start|>user\nWhat is the weather in Oslo?<|im_end|>\n<|im_start|>assistant\n"


def test_developer_and_system_are_the_same_role(render: Render) -> None:
    assert render({"role": "developer", "content": "Be short."}) == "<|im_start|>system\nBe short.<|im_end|>\n"
    assert render({"role": "system", "content": "Be short."}) == "<|im_start|>system\nBe short.<|im_end|>\n"


def test_tools_join_the_system_message(render: Render) -> None:
    text = render({"role": "system", "content": "Be short."}, ASK, tools=[WEATHER])
    system, _, rest = text.partition("<|im_end|>")
    assert system.startswith("<|im_start|>system\nBe short.\n\n# Tools\n")
    assert '\n<tools>\n{"name": "get_weather", "parameters": {"type": "object"' in system
    assert "<tools>" not in rest


@pytest.mark.parametrize("is_strict", [True, False, None])
def test_a_tool_reads_the_same_whether_its_calls_are_held_to_its_schema_or_not(
    render: Render, is_strict: bool | None
) -> None:
    tool = {**WEATHER, "function": {**WEATHER["function"], "strict": is_strict}}
    assert render(ASK, tools=[tool]) == render(ASK, tools=[WEATHER])


def test_tools_get_a_system_message_when_there_is_none(render: Render) -> None:
    assert render(ASK, tools=[WEATHER]).startswith("<|im_start|>system\n# Tools\n")


def test_a_later_system_message_stays_where_it_is_and_repeats_no_tools(render: Render) -> None:
    text = render(ASK, {"role": "system", "content": "Now rhyme."}, tools=[WEATHER])
    assert text.count("<tools>\n") == 1
    assert text.endswith("<|im_start|>system\nNow rhyme.<|im_end|>\n")


@pytest.mark.parametrize("arguments", [{"city": "Oslo"}, '{"city": "Oslo"}'])
def test_a_tool_call_renders_as_the_model_wrote_it(render: Render, arguments: Any) -> None:
    wrote = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
    text = render(ASK, {"role": "assistant", "content": None, "tool_calls": [call("get_weather", arguments)]})
    assert text.endswith(f"<|im_start|>assistant\n{wrote}<|im_end|>\n")


def test_letters_outside_ascii_are_not_escaped(render: Render) -> None:
    text = render(ASK, {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"city": "Tromsø"})]})
    assert '{"city": "Tromsø"}' in text


def test_text_before_a_call_is_kept_to_the_byte(render: Render) -> None:
    text = render(ASK, {"role": "assistant", "content": " Let me see.\n", "tool_calls": [call("get_weather", {})]})
    assert "assistant\n Let me see.\n<tool_call>" in text


def test_calls_at_once_stand_on_lines_of_their_own(render: Render) -> None:
    calls = [call("get_weather", {"city": "Oslo"}), call("get_weather", {"city": "Lima"})]
    assert "</tool_call>\n<tool_call>" in render(ASK, {"role": "assistant", "tool_calls": calls})


def test_answers_of_tools_share_one_turn(render: Render) -> None:
    answers = [{"role": "tool", "tool_call_id": f"call{n}", "content": word} for n, word in enumerate(["sunny", "wet"])]
    text = render(ASK, *answers, ASK)
    turn = "<|im_start|>user\n<tool_response>sunny</tool_response>\n<tool_response>wet</tool_response><|im_end|>\n"
    assert turn in text
    assert text.count("<|im_start|>user") == 3


def test_parts_of_text_are_joined_by_lines(render: Render) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "user\none\ntwo<|im_end|>" in render({"role": "user", "content": parts})


def test_what_it_cannot_show_is_refused(render: Render) -> None:
    with pytest.raises(TemplateError, match="image_url"):
        render({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})
    with pytest.raises(TemplateError, match="critic"):
        render({"role": "critic", "content": "Hm."})
