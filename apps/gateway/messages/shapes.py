"""What a messages request may hold. Explicit tables: as with Anthropic, what is in none of them is refused by name.

Four kinds of fields: those rendered to chat, those that change nothing here, those that an engine understands as they
are, and those that would change the meaning and are not supported.
"""

from collections.abc import Callable
from typing import Any

from apps.gateway.bodies import read_json
from apps.gateway.capture import Wishes
from apps.gateway.checks import is_kind, is_texts
from apps.gateway.dialect import Json, ModelRequest
from apps.gateway.known_fields import LONGEST_NAME
from apps.gateway.messages.content import render_messages
from apps.gateway.messages.fields import take_object, take_text, wrong
from apps.gateway.messages.tools import render_choice, render_tools

RENDERED = frozenset(
    {
        "max_tokens",
        "messages",
        "model",
        "output_config",
        "output_format",
        "stop_sequences",
        "stream",
        "system",
        "thinking",
        "tool_choice",
        "tools",
    }
)

# They steer other people's servers, or say what is true here anyway.
IGNORED = frozenset(
    {
        "anthropic_beta",
        "anthropic_version",
        "betas",
        "billing_policy",
        "cache_control",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)

# Sampling that engines have beyond Anthropic's, for those who ask for it.
PASSED = frozenset(
    {
        "chat_template_kwargs",
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "stop_token_ids",
        "temperature",
        "top_k",
        "top_p",
    }
)

# Silence would give another answer than the one asked for. Field → what to do instead.
REFUSED = {
    "compaction": "this platform does not summarise conversations: ask the model for a summary",
    "container": "this platform runs no containers",
    "mcp_servers": "this platform calls no MCP servers: let the agent call them and offer their tools to the model",
    "thread": "this platform keeps no conversation for its clients: send all messages",
}

KNOWN = RENDERED | IGNORED | PASSED | REFUSED.keys()

_THINKING = {"adaptive": True, "between_tools": True, "disabled": False, "enabled": True}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def read_messages_request(raw: bytes) -> ModelRequest:
    """Return the request in these bytes; raises ApiError (400) that names the field at fault."""
    body = read_json(raw)
    _check_fields(body)
    if body.get("max_tokens") is None:
        raise wrong("max_tokens", "Field required")
    prompt, dropped = render_prompt(body)
    sampling = {name: body[name] for name in PASSED if body.get(name) is not None and name not in prompt}
    engine_body = prompt | sampling | {"max_tokens": body["max_tokens"]}
    engine_body |= render_choice(body, prompt.get("tools", []))
    engine_body |= _render_format(body)
    if body.get("stop_sequences"):
        engine_body["stop"] = body["stop_sequences"]
    if body.get("stream"):
        engine_body["stream"] = True
    return ModelRequest(
        body=body,
        engine_body=engine_body,
        model=body["model"],
        is_streamed=bool(body.get("stream")),
        wishes=Wishes(),
        chat_form={name: prompt[name] for name in ("messages", "tools") if name in prompt},
        dropped=dropped | _find_dropped(body),
    )


def read_count_request(raw: bytes) -> tuple[str, Json]:
    """Return the model's name and what makes up the prompt to be counted; raises ApiError (400)."""
    body = read_json(raw)
    _check_fields(body)
    prompt, _ = render_prompt(body)
    return body["model"], prompt


def render_prompt(body: Json) -> tuple[Json, Json]:
    """Return the chat fields that decide what the model reads, and which tools had to be left out."""
    prompt: Json = {"messages": render_messages(body)}
    tools, dropped = render_tools(body)
    if tools:
        prompt["tools"] = tools
    last = prompt["messages"][-1]
    if last["role"] == "assistant" and "tool_calls" not in last:  # the client has begun the answer
        prompt |= {"add_generation_prompt": False, "continue_final_message": True}
    return prompt | _render_thinking(body), {f"tools.{kind}": True for kind in dropped}


def _render_thinking(body: Json) -> Json:
    fields: Json = {}
    switches: Json = {}
    if body.get("thinking") is not None:
        kind = take_object(body["thinking"], "thinking").get("type")
        if not isinstance(kind, str) or kind not in _THINKING:
            raise wrong("thinking.type", f"Input should be one of {', '.join(_THINKING)}")
        switches["enable_thinking"] = _THINKING[kind]
    if (effort := _config(body).get("effort")) is not None:
        if effort not in _EFFORTS:
            raise wrong("output_config.effort", f"Input should be one of {', '.join(_EFFORTS)}")
        fields["reasoning_effort"] = effort
    own = body.get("chat_template_kwargs")
    if switches or own:
        fields["chat_template_kwargs"] = switches | (take_object(own, "chat_template_kwargs") if own else {})
    return fields


def _render_format(body: Json) -> Json:
    """Return chat's `response_format`. `output_format` is the name that `output_config.format` had in its beta."""
    wanted, path = _config(body).get("format"), "output_config.format"
    if wanted is None:
        wanted, path = body.get("output_format"), "output_format"
    if wanted is None:
        return {}
    if take_object(wanted, path).get("type") != "json_schema":
        raise wrong(f"{path}.type", "Input should be json_schema")
    schema = take_object(wanted.get("schema"), f"{path}.schema")
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": True}}
    }


def _config(body: Json) -> Json:
    return take_object(body["output_config"], "output_config") if body.get("output_config") is not None else {}


def _find_dropped(body: Json) -> Json:
    """Return what was understood but cannot be done, so that the client is told and the pool knows."""
    dropped: Json = {}
    if budget := (body.get("thinking") or {}).get("budget_tokens"):
        if type(budget) is not int:
            raise wrong("thinking.budget_tokens", "Input should be an integer")
        dropped["thinking.budget_tokens"] = budget
    management = body.get("context_management")
    edits = management.get("edits") if isinstance(management, dict) else None
    known = [edit for edit in edits if isinstance(edit, dict)] if isinstance(edits, list) else []
    kinds = [str(edit.get("type"))[:LONGEST_NAME] for edit in known]
    unmet = [kind for kind in kinds if not kind.startswith("clear_thinking")]  # templates do that by themselves
    if unmet:
        dropped["context_management"] = unmet
    return dropped


_CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("max_tokens", lambda value: type(value) is int and value > 0, "an integer greater than 0"),
    ("stream", is_kind(bool), "true or false"),
    ("stop_sequences", is_texts, "a list of strings"),
    ("temperature", is_kind(int, float), "a number"),
    ("top_p", is_kind(int, float), "a number"),
    ("top_k", is_kind(int), "an integer"),
    ("seed", is_kind(int), "an integer"),
    ("tools", is_kind(list), "a list"),
)


def _check_fields(body: Json) -> None:
    for name, value in body.items():
        if value is not None and name not in KNOWN:
            raise wrong(name[:LONGEST_NAME], "Extra inputs are not permitted")
    for name, advice in REFUSED.items():
        if body.get(name):
            raise wrong(name, f"not supported: {advice}")
    if not take_text(body.get("model"), "model"):
        raise wrong("model", "Field required")
    for name, check, expected in _CHECKS:
        if body.get(name) is not None and not check(body[name]):
            raise wrong(name, f"Input should be {expected}")
