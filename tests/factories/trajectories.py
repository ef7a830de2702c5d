"""Trajectories and steps as the recorder would have made them, and exchanges as the gateway writes them."""

import json
from datetime import timedelta
from typing import Any

import factory
from django.utils import timezone
from factory.django import DjangoModelFactory

from apps.core.contracts.arrays import pack_ids, pack_logprobs
from apps.core.ids import new_id
from apps.trajectories.models import Exchange, ExchangeStatus, Step, Trajectory
from tests.factories.accounts import AgentFactory, ApiKeyFactory

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


class TrajectoryFactory(DjangoModelFactory[Trajectory]):
    """`n_steps` and the other sums are not kept up by StepFactory: a test that needs them sets them."""

    class Meta:
        model = Trajectory

    agent = factory.SubFactory(AgentFactory)
    project = factory.SelfAttribute("agent.project")


class StepFactory(DjangoModelFactory[Step]):
    """A step that shares nothing with a parent: `prompt_ids`, `completion_ids`, `token_logprobs`, `messages`,
    `text`."""

    class Meta:
        model = Step

    class Params:
        prompt_ids = [1, 2, 3]
        completion_ids = [4, 5]
        token_logprobs = factory.LazyAttribute(lambda step: [-0.5] * len(step.completion_ids))
        messages = [{"role": "user", "content": "hello"}]
        text = "hi"

    trajectory = factory.SubFactory(TrajectoryFactory)
    exchange_id = factory.LazyFunction(lambda: new_id("exch"))
    response_id = factory.LazyAttribute(lambda step: f"chatcmpl-{step.exchange_id[-20:]}")
    index = factory.Sequence(lambda n: n)
    tail_token_ids = factory.LazyAttribute(lambda step: pack_ids(step.prompt_ids))
    completion_token_ids = factory.LazyAttribute(lambda step: pack_ids(step.completion_ids))
    logprobs = factory.LazyAttribute(lambda step: pack_logprobs(step.token_logprobs))
    tail_messages = factory.LazyAttribute(lambda step: json.dumps(step.messages).encode())
    answer = factory.LazyAttribute(lambda step: json.dumps({"role": "assistant", "content": step.text}).encode())
    n_prompt_tokens = factory.LazyAttribute(lambda step: len(step.prompt_ids))
    n_completion_tokens = factory.LazyAttribute(lambda step: len(step.completion_ids))
    finish_reason = "stop"
    status = ExchangeStatus.COMPLETE
    is_exact = True
    started_at = factory.LazyFunction(timezone.now)
    ended_at = factory.LazyFunction(timezone.now)


def chat_request(messages: list[dict[str, Any]], **fields: Any) -> bytes:
    """Return a chat request's body."""
    return json.dumps({"model": "default", "messages": messages, **fields}).encode()


def chat_response(*answers: dict[str, Any], response_id: str = "") -> bytes:
    """Return a chat answer's body; one choice for each of `answers` (assistant messages without their role)."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": None, **answer},
            "finish_reason": "tool_calls" if answer.get("tool_calls") else "stop",
        }
        for index, answer in enumerate(answers)
    ]
    return json.dumps({"id": response_id, "object": "chat.completion", "choices": choices}).encode()


class ExchangeFactory(DjangoModelFactory[Exchange]):
    """One chat call. `messages` went in and `answers` (one a choice) came out; `prompt_ids`, `completions`, `logprobs`
    are what the engine said; `body` holds further fields of the request; `header` what was kept of the headers."""

    class Meta:
        model = Exchange

    class Params:
        key = factory.SubFactory(ApiKeyFactory)
        messages = [{"role": "user", "content": "hello"}]
        answers = [{"content": "hi"}]
        body: dict[str, Any] = {}
        header: dict[str, str] = {}
        prompt_ids = [1, 2, 3]
        completions = factory.LazyAttribute(lambda exchange: [[4, 5] for _ in exchange.answers])
        token_logprobs = factory.LazyAttribute(lambda exchange: [[-0.5] * len(ids) for ids in exchange.completions])

    id = factory.LazyFunction(lambda: new_id("exch"))
    project_id = factory.LazyAttribute(lambda exchange: exchange.key.agent.project_id)
    agent_id = factory.LazyAttribute(lambda exchange: exchange.key.agent_id)
    key_id = factory.LazyAttribute(lambda exchange: exchange.key.id)
    dialect = "chat"
    response_id = factory.LazyAttribute(lambda exchange: f"chatcmpl-{exchange.id[-20:]}")
    request = factory.LazyAttribute(lambda exchange: chat_request(exchange.messages, **exchange.body))
    headers = factory.LazyAttribute(lambda exchange: json.dumps(exchange.header).encode())
    response = factory.LazyAttribute(
        lambda exchange: chat_response(*exchange.answers, response_id=exchange.response_id)
    )
    prompt_token_ids = factory.LazyAttribute(lambda exchange: pack_ids(exchange.prompt_ids))
    completion_token_ids = factory.LazyAttribute(lambda exchange: [pack_ids(ids) for ids in exchange.completions])
    completion_logprobs = factory.LazyAttribute(
        lambda exchange: [pack_logprobs(values) for values in exchange.token_logprobs]
    )
    sampling = b'{"temperature": 1.0}'
    status = ExchangeStatus.COMPLETE
    is_streamed = False
    is_exact = True
    ended_at = factory.LazyFunction(timezone.now)
    started_at = factory.LazyAttribute(lambda exchange: exchange.ended_at - timedelta(seconds=1))
