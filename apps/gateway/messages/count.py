"""Counts the tokens of a prompt: the engine's own count of what it would read, since no tokenizer is on this side.

Nothing is generated and nothing kept. Knows no sockets.
"""

import orjson

from apps.gateway.answers import say_broken, say_unavailable
from apps.gateway.call import read_refusal
from apps.gateway.checks import dump_body
from apps.gateway.desk import Desk
from apps.gateway.dialect import Json
from apps.gateway.endpoint import find_version
from apps.gateway.engines import EngineBrokenError, EngineRefusedError, EngineUnavailableError, Reply
from apps.gateway.errors import ApiError
from apps.gateway.nonsense import NONSENSE, note_nonsense
from apps.gateway.prompt_form import Prompt
from apps.gateway.routes import KeyRoute, VersionRoute

_PATH = "/tokenize"


async def count_tokens(model: str, prompt: Json, *, desk: Desk, key: KeyRoute) -> Json:
    """Return how many tokens the prompt has; raises ApiError (400, 404, 502, 503)."""
    version = await find_version(desk, key, model)
    if version.is_text_only:
        raise _not_counted(model)
    try:
        return {"input_tokens": await _ask(prompt, desk=desk, key=key, version=version)}
    except EngineRefusedError as refusal:
        raise read_refusal(refusal.status, refusal.body) from refusal
    except EngineUnavailableError as fault:
        raise say_unavailable(fault) from fault
    except EngineBrokenError as fault:
        raise say_broken(fault) from fault


async def _ask(prompt: Json, *, desk: Desk, key: KeyRoute, version: VersionRoute) -> int:
    """Return the engine's count, the messages in the form that its chat template takes."""
    fitted = Prompt(prompt["messages"], known=desk.prompt_forms, template=f"{key.project_id} {version.template}")
    while True:
        asked = prompt | {"messages": fitted.messages}
        body = dump_body(make_tokenize_body(asked, engine_name=version.engine_name))
        try:
            count = await _ask_once(body, desk=desk, key=key, version=version)
        except EngineRefusedError as refusal:
            if not fitted.make_stricter(refusal.status, refusal.body):
                raise
        else:
            fitted.note_taken()
            return count


async def _ask_once(body: bytes, *, desk: Desk, key: KeyRoute, version: VersionRoute) -> int:
    with await desk.engines.ask(
        _PATH,
        body,
        find_engines=lambda: desk.routes.snapshot.find_engines(version),
        is_streamed=False,
        project_id=key.project_id,
        version_id=version.id,
    ) as reply:
        return _read_count(reply)


def _read_count(reply: Reply) -> int:
    """Return the number in the engine's answer; raises EngineNonsenseError."""
    try:
        count = orjson.loads(reply.first)["count"]
        if type(count) is not int or count < 0:
            raise TypeError(f"{count!r} is no number of tokens")
    except NONSENSE as error:
        raise note_nonsense(error, engine=reply.engine) from error
    return count


def _not_counted(model: str) -> ApiError:
    message = f"`{model[:200]}` is a provider's model, and providers do not count tokens: count with another model."
    return ApiError(message, status=404, code="tokens_not_counted", param="model")


def make_tokenize_body(prompt: Json, *, engine_name: str) -> Json:
    """Return what vLLM's /tokenize is asked, such that it renders the very prompt of a chat completion.

    It knows neither `reasoning_effort` nor `reasoning_content`; a chat completion turns them into what stands here.
    """
    messages = [_rename_reasoning(message) for message in prompt["messages"]]
    body: Json = {"add_generation_prompt": True, **prompt, "messages": messages, "model": engine_name}
    effort = body.pop("reasoning_effort", None)
    if effort is not None:
        switches = {"reasoning_effort": effort, "enable_thinking": True}
        body["chat_template_kwargs"] = switches | body.get("chat_template_kwargs", {})
    return body


def _rename_reasoning(message: Json) -> Json:
    if "reasoning_content" not in message:
        return message
    return {"reasoning" if name == "reasoning_content" else name: value for name, value in message.items()}
