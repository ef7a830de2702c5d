"""Counts the tokens of a prompt: the engine's own count of what it would read, since no tokenizer is on this side.

Nothing is generated and nothing kept. Knows no sockets.
"""

import orjson

from apps.gateway.call import read_refusal
from apps.gateway.desk import Desk
from apps.gateway.dialect import Json
from apps.gateway.endpoint import find_version
from apps.gateway.engines import EngineBrokenError, EngineRefusedError, EngineUnavailableError
from apps.gateway.errors import ApiError, bad_request, unavailable
from apps.gateway.messages.shapes import read_count_request
from apps.gateway.prompt_form import Prompt
from apps.gateway.routes import KeyRoute, VersionRoute

_PATH = "/tokenize"


async def count_tokens(raw: bytes, *, desk: Desk, key: KeyRoute) -> Json:
    """Return how many tokens the request's prompt has; raises ApiError (400, 404, 503)."""
    model, prompt = read_count_request(raw)
    version = await find_version(desk, key, model)
    if version.is_text_only:
        raise _not_counted(model)
    try:
        answer = await _ask(prompt, desk=desk, key=key, version=version)
        return {"input_tokens": int(orjson.loads(answer)["count"])}
    except EngineRefusedError as refusal:
        raise read_refusal(refusal.status, refusal.body) from refusal
    except (EngineUnavailableError, EngineBrokenError) as fault:
        raise unavailable(f"The tokens cannot be counted now: {fault}") from fault
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError) as error:
        raise unavailable("The engine's count makes no sense.", code="engine_broken") from error


async def _ask(prompt: Json, *, desk: Desk, key: KeyRoute, version: VersionRoute) -> bytes:
    """Return the engine's answer, the messages in the form that its chat template takes."""
    fitted = Prompt(prompt["messages"], known=desk.prompt_forms, template=version.template)
    while True:
        body = _dump_body(prompt | {"messages": fitted.messages}, engine_name=version.engine_name)
        try:
            answer = await _ask_once(body, desk=desk, key=key, version=version)
        except EngineRefusedError as refusal:
            if not fitted.make_stricter(refusal.status, refusal.body):
                raise
        else:
            fitted.note_taken()
            return answer


async def _ask_once(body: bytes, *, desk: Desk, key: KeyRoute, version: VersionRoute) -> bytes:
    with await desk.engines.ask(
        _PATH,
        body,
        find_engines=lambda: desk.routes.snapshot.find_engines(version),
        is_streamed=False,
        project_id=key.project_id,
        version_id=version.id,
    ) as reply:
        return reply.first


def _dump_body(prompt: Json, *, engine_name: str) -> bytes:
    try:
        return orjson.dumps(make_tokenize_body(prompt, engine_name=engine_name))
    except orjson.JSONEncodeError as error:  # it reads deeper than it writes
        raise bad_request("The body is nested too deeply.", code="invalid_json") from error


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
