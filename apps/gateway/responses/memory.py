"""Earlier answers, read from the pool for the project that they were given to. Knows no HTTP.

An answer is in Postgres or in the spool before its last byte leaves, so whoever has its id finds it, whichever gateway
of this host gave it. Those in Postgres are waited for while it is away: a restart of it ends no conversation.
"""

import asyncio
import time
from collections.abc import Collection, Iterable
from typing import Any

import orjson
import psycopg
import structlog

from apps.core.contracts.exchange import COMPLETE, UNCAPTURED, ExchangeRecord
from apps.core.ids import is_id
from apps.gateway.database import connect
from apps.gateway.dialect import Json
from apps.gateway.errors import ApiError, bad_request, unavailable
from apps.gateway.responses.history import strip_instructions
from apps.gateway.responses.naming import RESPONSE_PREFIX, answer_of_item
from apps.gateway.writer import ExchangeWriter
from apps.trajectories.exchange_log import StoredAnswer, find_answers

log = structlog.get_logger(__name__)

ANSWER_S = 3.0
PATIENCE_S = 75.0  # clients wait for ten minutes, and three quick errors may end an agent's work
RETRY_EVERY_S = 0.5
_KEPT = ("role", "content", "reasoning_content", "tool_calls")  # of an engine's message: what a request may hold


async def load_response(response_id: str, *, project_id: str, writer: ExchangeWriter) -> Json | None:
    """Return an answer as its client got it, None when the project has none of this id; raises ApiError (503)."""
    found = (await _load([response_id], project_id=project_id, writer=writer)).get(response_id)
    response: Json = orjson.loads(found.response) if found else {}
    return response if response.get("object") == "response" else None  # else the call was refused


async def recall_messages(response_id: str, *, project_id: str, writer: ExchangeWriter) -> list[Json]:
    """Return the chat messages up to and with an earlier answer, less the instructions of its request.

    Raises ApiError (400, 503).
    """
    found = (await _load([response_id], project_id=project_id, writer=writer)).get(response_id)
    if found is None:
        raise _not_found(response_id)
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


async def resolve_references(items: list[Any], *, project_id: str, writer: ExchangeWriter) -> list[Any]:
    """Return the items with what we once answered in the place of each reference to it; raises ApiError (400, 503)."""
    wanted = {place: item["id"] for place, item in enumerate(items) if _is_reference(item)}
    if not wanted:
        return items
    answers = {answer_of_item(item_id) for item_id in wanted.values()}
    found = await _load(answers - {""}, project_id=project_id, writer=writer)
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


async def _load(response_ids: Iterable[str], *, project_id: str, writer: ExchangeWriter) -> dict[str, StoredAnswer]:
    """Return those of the answers that the project has; raises ApiError (503) after having waited for Postgres."""
    ids = {response_id for response_id in response_ids if is_id(response_id, RESPONSE_PREFIX[:-1])}
    found: dict[str, StoredAnswer] = {}
    if ids and not writer.spool.is_empty():  # asked first: what is replayed meanwhile is in Postgres then
        spooled = await asyncio.to_thread(writer.spool.find_answers, ids)
        found = {key: _as_stored(record) for key, record in spooled.items() if _is_answer(record, project_id)}
        ids -= spooled.keys()
    return found | await _load_from_pool(ids, project_id=project_id, writer=writer) if ids else found


async def _load_from_pool(
    response_ids: Collection[str], *, project_id: str, writer: ExchangeWriter
) -> dict[str, StoredAnswer]:
    """One connection a question: few clients ask at all."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            async with asyncio.timeout(ANSWER_S):
                async with await connect() as connection:
                    return await find_answers(connection, list(response_ids), project_id=project_id)
        except (psycopg.Error, OSError, TimeoutError) as error:
            log.warning("responses.unread", error=str(error).strip() or type(error).__name__)
            await _await_database(writer, give_up_at=give_up_at, cause=error)


async def _await_database(writer: ExchangeWriter, *, give_up_at: float, cause: Exception) -> None:
    """Return when it is worth while to ask again; raises ApiError (503). The writer looks for Postgres for all."""
    while time.monotonic() + RETRY_EVERY_S < give_up_at:
        await asyncio.sleep(RETRY_EVERY_S)
        if writer.is_connected:
            return
    raise _cannot_read() from cause


def _is_answer(record: ExchangeRecord, project_id: str) -> bool:
    return record.project_id == project_id and record.response is not None


def _as_stored(record: ExchangeRecord) -> StoredAnswer:
    return StoredAnswer(
        request=record.request,
        response=record.response or b"",
        chat_request=record.chat_request,
        chat_response=record.chat_response,
        status=record.status,
    )


def _cannot_read() -> ApiError:
    return unavailable("Earlier responses cannot be read now.", code="database_unavailable")


def _not_found(response_id: str) -> ApiError:
    is_kept = not response_id.startswith(RESPONSE_PREFIX + UNCAPTURED)
    why = "" if is_kept else " It was not captured: send the conversation as `input`."
    return ApiError(
        f"Previous response with id '{response_id[:80]}' not found.{why}",
        status=400,
        code="previous_response_not_found",
        param="previous_response_id",
    )
