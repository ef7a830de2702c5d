"""An engine's answer that is none: the client is told in its dialect, the call is kept, and nothing breaks."""

import json
from typing import Any

import httpx
import pytest

from apps.gateway.capture import AnswerCapture, Wishes
from apps.trajectories.models import Exchange, ExchangeStatus
from apps.trajectories.recorder import fold_pending
from tests.apps.gateway.conftest import chat
from tests.fakes.engine import FakeEngine

Json = dict[str, Any]
SAID = chat()["messages"]
DOORS: dict[str, Json] = {
    "/v1/chat/completions": {"messages": SAID},
    "/v1/completions": {"prompt": "hello"},
    "/v1/messages": {"messages": SAID, "max_tokens": 9},
    "/v1/responses": {"input": "hello"},
}


def choice(**said: Any) -> Json:
    """One choice that says this, whole and streamed, as chat and as a completion."""
    message = {"role": "assistant", **said.pop("message", {})}
    return {"choices": [{"index": 0, "message": message, "delta": message, "finish_reason": "stop", **said}]}


NONSENSE: list[object] = [
    5,
    "no",
    [1],
    {"choices": 7},
    {"choices": [None]},
    choice(index="first", text="x"),
    choice(finish_reason={"a": 1}, text="x"),
    choice(logprobs=5, text="x"),
    choice(message={"content": {"text": "x"}}, text=["x"]),
    choice(message={"tool_calls": [{"index": [1], "function": {"name": {"a": 1}}}]}, text={"b": 1}),
    choice(message={"reasoning": {"a": 1}}, text={"a": 1}),
    choice(prompt_token_ids=5, token_ids=5, text="x"),
]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", DOORS)
def test_an_answer_that_is_none_is_told_and_kept(
    http: httpx.Client, engine: FakeEngine, path: str, *, is_streamed: bool
) -> None:
    body = {"model": "otter", "stream": is_streamed, **DOORS[path]}
    for nonsense in NONSENSE:
        engine.script.nonsense = nonsense
        answer = http.post(path, json=body)
        assert answer.status_code == 503, (nonsense, answer.text)
        assert answer.headers["retry-after"]
        assert "sense" in json.dumps(answer.json()) or "ended too early" in json.dumps(answer.json())
    engine.script.nonsense = None
    assert http.post(path, json=body).status_code == 200

    kept = list(Exchange.objects.order_by("id").values_list("status", flat=True))
    assert kept == [ExchangeStatus.ERROR] * len(NONSENSE) + [ExchangeStatus.COMPLETE]
    fold_pending()
    assert not Exchange.objects.set_aside().exists()


@pytest.mark.parametrize(
    "usage",
    [5, [], {"prompt_tokens": "many"}, {"completion_tokens": []}, {"prompt_tokens_details": {"cached_tokens": {}}}],
)
def test_a_usage_that_counts_nothing_is_not_counted(usage: object) -> None:
    capture = AnswerCapture(response_id="r", model="otter", n_choices=1, wishes=Wishes())
    capture.take_whole(choice(message={"content": "hi"}) | {"usage": usage})
    assert capture.usage is None
    assert capture.render()["choices"][0]["message"]["content"] == "hi"
