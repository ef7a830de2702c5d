"""Asks an engine for embeddings and gives them in the encoding that the client wants. Knows no sockets.

An embedding model is one of a project's teachers. Engines that generate text serve no embeddings: they do not have the
path.
"""

import base64
from array import array
from typing import Any

import orjson

from apps.core.counted import count_of
from apps.gateway.answers import say_broken, say_unavailable
from apps.gateway.call import read_refusal
from apps.gateway.checks import dump_body
from apps.gateway.desk import Desk
from apps.gateway.dialect import Json
from apps.gateway.embeddings.shapes import EmbeddingsRequest
from apps.gateway.engines import EngineBrokenError, EngineRefusedError, EngineUnavailableError, Reply
from apps.gateway.errors import ApiError
from apps.gateway.nonsense import NONSENSE, note_nonsense
from apps.gateway.provider_form import make_provider_body
from apps.gateway.routes import KeyRoute, VersionRoute

PATH = "/v1/embeddings"


async def fetch_embeddings(desk: Desk, key: KeyRoute, request: EmbeddingsRequest) -> tuple[Json, VersionRoute]:
    """Return the answer and what gave it; raises ApiError."""
    version = await desk.find_version(key, request.model)
    if version is None:
        raise _not_served(request.model)
    body = _dump_body(request, version)
    try:
        with await desk.engines.ask(
            PATH,
            body,
            find_engines=lambda: desk.routes.snapshot.find_engines(version),
            is_streamed=False,
            project_id=key.project_id,
            version_id=version.id,
        ) as reply:
            return _read_answer(reply, request), version
    except EngineRefusedError as refusal:
        if refusal.status in {404, 405}:
            raise _not_served(request.model) from refusal
        raise _name_input(read_refusal(refusal.status, refusal.body)) from refusal
    except EngineUnavailableError as fault:
        raise say_unavailable(fault) from fault
    except EngineBrokenError as fault:
        raise say_broken(fault) from fault


def _dump_body(request: EmbeddingsRequest, version: VersionRoute) -> bytes:
    body: Json = {**request.engine_body, "model": version.engine_name}
    if version.is_text_only:
        body, _ = make_provider_body(body, asked=request.engine_body)
    return dump_body(body)


def _read_answer(reply: Reply, request: EmbeddingsRequest) -> Json:
    """Return the engine's answer in the client's words; raises EngineNonsenseError."""
    try:
        return _render(orjson.loads(reply.first), request)
    except NONSENSE as error:
        raise note_nonsense(error, engine=reply.engine) from error


def _render(answer: Json, request: EmbeddingsRequest) -> Json:
    vectors = {item.get("index", place): item["embedding"] for place, item in enumerate(answer["data"])}
    if sorted(vectors) != list(range(request.n_inputs)):
        raise ValueError(f"{count_of(len(vectors), 'vector')} for {count_of(request.n_inputs, 'input')}")
    data = [
        {"object": "embedding", "index": place, "embedding": _encode(vector, request)}
        for place, vector in sorted(vectors.items())
    ]
    usage = answer.get("usage") or {}
    n_tokens = int(usage.get("prompt_tokens") or 0)
    counted = {"prompt_tokens": n_tokens, "total_tokens": int(usage.get("total_tokens") or n_tokens)}
    return {"object": "list", "data": data, "model": request.model, "usage": counted}


def _encode(vector: Any, request: EmbeddingsRequest) -> str | list[float]:
    """Return the vector as the client wants it. Base64 holds 32-bit floats, the low byte first, as our machines do."""
    if isinstance(vector, str):
        numbers = array("f", base64.b64decode(vector, validate=True))
        return vector if request.is_base64 else numbers.tolist()
    numbers = array("f", vector)  # also where it goes on as it is: only what holds numbers and nothing else is a vector
    return base64.b64encode(numbers.tobytes()).decode() if request.is_base64 else vector


def _name_input(error: ApiError) -> ApiError:
    """Return the engine's refusal; what is too long is called `input` here."""
    error.param = "input" if error.code == "context_length_exceeded" else error.param
    return error


def _not_served(model: str) -> ApiError:
    advice = "have an owner of the project add a model that does as a teacher, or send embeddings elsewhere"
    return ApiError(
        f"No engine serves embeddings as `{model[:200]}`: {advice}.",
        status=404,
        code="embeddings_not_served",
        param="model",
    )
