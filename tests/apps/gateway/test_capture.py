"""The capture, fed with what vLLM 0.32 really answered (samples/, SmolLM2-135M-Instruct)."""

import json
from pathlib import Path
from typing import Any

import pytest

from apps.core.contracts.arrays import pack_ids, pack_logprobs, unpack_ids
from apps.gateway.capture import AnswerCapture, Wishes
from apps.gateway.sse import DONE, EventReader

SAMPLES = Path(__file__).parent / "samples"
END_TOKEN = 2


def make_capture(*, n_choices: int = 1, usage: bool = True) -> AnswerCapture:
    return AnswerCapture(response_id="chatcmpl-x", model="otter", n_choices=n_choices, wishes=Wishes(usage=usage))


def read_chunks(name: str, *, read_bytes: int = 1000) -> list[dict[str, Any]]:
    """Return a sample's chunks, read in pieces of `read_bytes`."""
    reader, data = EventReader(), (SAMPLES / name).read_bytes()
    payloads = [
        payload for at in range(0, len(data), read_bytes) for payload in reader.feed(data[at : at + read_bytes])
    ]
    assert payloads.pop() == DONE
    return [json.loads(payload) for payload in payloads]


@pytest.mark.parametrize("read_bytes", [1, 7, 1000, 10**6])
def test_a_stream_and_the_same_answer_in_one_piece_are_kept_alike(read_bytes: int) -> None:
    streamed, whole = make_capture(), make_capture()
    for chunk in read_chunks("plain_stream.txt", read_bytes=read_bytes):
        streamed.take_chunk(chunk)
    answer = json.loads((SAMPLES / "plain_whole.json").read_bytes())
    whole.take_whole(answer)

    assert streamed.packed_tokens().is_exact
    assert streamed.packed_tokens() == whole.packed_tokens()
    assert streamed.render()["choices"][0]["message"]["content"] == answer["choices"][0]["message"]["content"]
    assert streamed.is_finished


def test_a_streamed_tool_call_keeps_every_token_that_the_parser_hid() -> None:
    capture, whole = make_capture(), make_capture()
    chunks = read_chunks("tool_call_stream.txt")
    n_sampled = sum(len(choice.get("token_ids", ())) for chunk in chunks for choice in chunk["choices"])
    capture.usage = {"completion_tokens": n_sampled}  # this sample was taken without usage
    for chunk in chunks:
        capture.take_chunk(chunk)
    whole.take_whole(json.loads((SAMPLES / "tool_call_whole.json").read_bytes()))

    tokens = capture.packed_tokens()
    assert tokens.is_exact
    assert (tokens.prompt, tokens.completions) == (whole.packed_tokens().prompt, whole.packed_tokens().completions)
    assert unpack_ids(tokens.completions[0])[-1] == END_TOKEN
    (choice,) = capture.render()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


def test_two_choices_of_one_stream_are_told_apart() -> None:
    capture = make_capture(n_choices=2)
    sampled: dict[int, list[int]] = {0: [], 1: []}
    for chunk in read_chunks("two_choices_stream.txt"):
        for choice in chunk["choices"]:
            sampled[choice["index"]] += choice.get("token_ids", ())
        capture.take_chunk(chunk)

    assert capture.packed_tokens().completions == (pack_ids(sampled[0]), pack_ids(sampled[1]))
    assert not capture.packed_tokens().is_exact  # without usage the count cannot be checked


def test_a_choice_keeps_its_place_when_another_has_not_begun() -> None:
    capture = make_capture(n_choices=2)
    choice = {"index": 1, "delta": {"content": "x"}, "logprobs": {"content": [{"logprob": -1.0}]}, "token_ids": [7]}
    capture.take_chunk({"choices": [choice]})

    assert capture.packed_tokens().completions == (b"", pack_ids([7]))
    assert not capture.packed_tokens().is_exact


def test_chunks_that_show_nothing_are_not_sent() -> None:
    capture = make_capture(usage=False)
    sent = [chunk for chunk in read_chunks("plain_stream.txt") if capture.take_chunk(chunk)]

    assert all(chunk["choices"] for chunk in sent)
    assert sent[-1]["choices"][0]["finish_reason"] == "length"


def test_logprobs_are_rounded_to_float32_and_no_further() -> None:
    capture = make_capture()
    answer = json.loads((SAMPLES / "plain_whole.json").read_bytes())
    logprobs = [item["logprob"] for item in answer["choices"][0]["logprobs"]["content"]]
    capture.take_whole(answer)

    assert capture.packed_tokens().logprobs == (pack_logprobs(logprobs),)


@pytest.mark.parametrize("nonsense", [2**40, -1])
def test_an_engine_that_sends_nonsense_for_ids_makes_no_exact_record(nonsense: int) -> None:
    capture = make_capture()
    answer = json.loads((SAMPLES / "plain_whole.json").read_bytes())
    answer["choices"][0]["token_ids"][0] = nonsense
    capture.take_whole(answer)

    assert capture.packed_tokens() == make_capture().packed_tokens()
    assert not capture.packed_tokens().is_exact


@pytest.mark.parametrize("name", ["plain_stream.txt", "tool_call_stream.txt"])
def test_what_a_real_engine_streams_raises_no_doubt(name: str) -> None:
    capture = make_capture()
    for chunk in read_chunks(name):
        capture.take_chunk(chunk)
    if capture.usage is None:  # one sample was taken without it
        assert capture.find_doubt() == "count"
        capture.usage = {"completion_tokens": len(capture.choices[0].token_ids)}

    assert capture.find_doubt() == ""


def test_a_call_that_a_real_engines_stream_swallowed_is_noticed() -> None:
    capture = make_capture()
    for chunk in read_chunks("swallowed_call_stream.txt"):
        capture.take_chunk(chunk)

    (choice,) = capture.render()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "To call a function, answer with "}
    assert "".join(capture.choices[0].tokens).endswith('"arguments": ARGUMENTS}</tool_call><|im_end|>')
    assert capture.find_doubt() == "swallowed"
    assert capture.packed_tokens().is_exact


@pytest.mark.parametrize("name", ["plain_whole.json", "tool_call_whole.json"])
def test_what_a_real_engine_answers_raises_no_doubt(name: str) -> None:
    capture = make_capture()
    capture.take_whole(json.loads((SAMPLES / name).read_bytes()))

    assert capture.find_doubt() == ""


@pytest.mark.parametrize(
    ("change", "doubt", "is_exact"),
    [
        (lambda choice: choice["token_ids"].pop(), "count", False),
        (lambda choice: choice["logprobs"]["content"].pop(), "count", False),
        (lambda choice: choice.update(logprobs=None), "count", False),
        (lambda choice: choice["message"]["tool_calls"].clear(), "swallowed", True),
        (lambda choice: choice["message"].update(content="Let me see."), "text", True),
        (lambda choice: choice["message"]["tool_calls"][0]["function"].update(name="get_wind"), "tool_call", True),
        (lambda choice: choice.update(token_ids=None), "", False),  # no ids: nothing to doubt
    ],
)
def test_an_answer_that_its_tokens_do_not_tell_is_doubted(change: Any, doubt: str, is_exact: bool) -> None:
    capture = make_capture()
    answer = json.loads((SAMPLES / "tool_call_whole.json").read_bytes())
    change(answer["choices"][0])
    capture.take_whole(answer)

    assert capture.find_doubt() == doubt
    assert capture.packed_tokens().is_exact == is_exact


def test_what_other_servers_leave_out_is_put_in() -> None:
    capture = make_capture()
    function = {"name": "look", "arguments": {"where": "here"}}
    answer: dict[str, Any] = {"choices": [{"message": {"tool_calls": [{"function": function}]}}]}
    capture.take_whole(answer)

    (choice,) = answer["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (answer["object"], answer["model"], answer["id"]) == ("chat.completion", "otter", "chatcmpl-x")
    assert answer["created"] > 1_700_000_000
    assert choice["finish_reason"] == "tool_calls"
    assert call["type"] == "function"
    assert call["id"].isalnum()
    assert call["function"]["arguments"] == '{"where":"here"}'


def test_a_streamed_call_gets_what_its_server_left_out() -> None:
    capture = make_capture()
    part: dict[str, Any] = {"index": 0, "function": {"name": "look"}}
    chunk: dict[str, Any] = {"choices": [{"index": 0, "delta": {"tool_calls": [part]}}]}
    capture.take_chunk(chunk)

    assert chunk["object"] == "chat.completion.chunk"
    assert part["type"] == "function"
    assert part["id"].isalnum()
    assert part["function"] == {"name": "look", "arguments": ""}
