"""Earlier answers, read from the pool for the project that they were given to. Knows no HTTP.

An answer is in the pool before its last byte leaves, so whoever has its id finds it, unless Postgres is, or was, away.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import orjson
import psycopg
import structlog

from apps.core.contracts.exchange import COMPLETE
from apps.core.ids import is_id
from apps.gateway.database import connect
from apps.gateway.dialect import Json
from apps.gateway.errors import ApiError, bad_request, unavailable
from apps.gateway.responses.history import strip_instructions
from apps.gateway.responses.naming import RESPONSE_PREFIX, answer_of_item
from apps.gateway.spool import Spool
from apps.trajectories.exchange_log import StoredAnswer, find_answers

log = structlog.get_logger(__name__)

ANSWER_S = 3.0
_KEPT = ("role", "content", "reasoning_content", "tool_calls")  # of an engine's message: what a request may hold


async def load_response(response_id: str, *, project_id: str) -> Json | None:
    """Return an answer as its client got it, None when the project has none of this id; raises ApiError (503)."""
    found = (await _load([response_id], project_id=project_id)).get(response_id)
    response: Json = orjson.loads(found.response) if found else {}
    return response if response.get("object") == "response" else None  # else the call was refused


async def recall_messages(response_id: str, *, project_id: str, spool: Spool) -> list[Json]:
    """Return the chat messages up to and with an earlier answer, less the instructions of its request.

    Raises ApiError (400, 503).
    """
    may_be_spooled = not spool.is_empty()  # asked first: it may be replayed while Postgres is asked
    found = (await _load([response_id], project_id=project_id)).get(response_id)
    if found is None:
        raise _cannot_read() if may_be_spooled else _not_found(response_id)
    if found.status != COMPLETE or not found.chat_request or not found.chat_response:
        raise bad_request(
            f"The response `{response_id}` did not come to its end: send the conversation as `input`.",
            param="previous_response_id",
            code="previous_response_incomplete",
        )
    messages = orjson.loads(found.chat_request)["messages"]
    answer = orjson.loads(found.chat_response)["choices"][0]["message"]
    said = {name: answer[name] for name in _KEPT if name == "content" or answer.get(name) is not None}
    return [*strip_instructions(messages, orjson.loads(found.request).get("instructions")), said]


async def resolve_references(items: list[Any], *, project_id: str) -> list[Any]:
    """Return the items with what we once answered in the place of each reference to it; raises ApiError (400, 503)."""
    wanted = {place: item["id"] for place, item in enumerate(items) if _is_reference(item)}
    if not wanted:
        return items
    answers = {answer_of_item(item_id) for item_id in wanted.values()}
    found = await _load(answers - {""}, project_id=project_id)
    known = {item["id"]: item for answer in found.values() for item in orjson.loads(answer.response).get("output", [])}
    resolved = list(items)
    for place, item_id in wanted.items():
        if item_id not in known:
            message = f"Item with id '{item_id}' not found: send the item itself."
            raise bad_request(message, param=f"input[{place}].id", code="item_not_found")
        resolved[place] = known[item_id]
    return resolved


def _is_reference(item: Any) -> bool:
    if not isinstance(item, dict) or not isinstance(item.get("id"), str):
        return False
    return item.get("type") == "item_reference" or ("type" not in item and "role" not in item)


async def _load(response_ids: Iterable[str], *, project_id: str) -> dict[str, StoredAnswer]:
    """Return those of the answers that the project has. One connection a question: few clients ask at all."""
    ids = [response_id for response_id in response_ids if is_id(response_id, RESPONSE_PREFIX[:-1])]
    if not ids:
        return {}
    try:
        async with asyncio.timeout(ANSWER_S):
            async with await connect() as connection:
                return await find_answers(connection, ids, project_id=project_id)
    except (psycopg.Error, OSError, TimeoutError) as error:
        log.warning("responses.unread", error=str(error).strip() or type(error).__name__)
        raise _cannot_read() from error


def _cannot_read() -> ApiError:
    return unavailable("Earlier responses cannot be read now.", code="database_unavailable")


def _not_found(response_id: str) -> ApiError:
    return ApiError(
        f"Previous response with id '{response_id[:80]}' not found.",
        status=400,
        code="previous_response_not_found",
        param="previous_response_id",
    )
