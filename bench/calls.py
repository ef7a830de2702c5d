"""Calls as the gateway writes them into the ledger, made up for benches. Needs Django to be set up."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apps.core.contracts.exchange import ExchangeRecord


def make_record(
    key: Any, *, messages: list[Any], answer: dict[str, Any], prompt: list[int], completion: list[int], **told: Any
) -> "ExchangeRecord":
    """Return a whole chat call; `told` may hold `tools` and `session_key`."""
    from django.utils import timezone  # noqa: PLC0415

    from apps.core.contracts.arrays import pack_ids, pack_logprobs  # noqa: PLC0415
    from apps.core.contracts.exchange import ExchangeRecord  # noqa: PLC0415
    from apps.core.ids import new_id  # noqa: PLC0415

    exchange_id, now = new_id("exch"), timezone.now()
    finish = "tool_calls" if answer.get("tool_calls") else "stop"
    choice = {"index": 0, "message": {"role": "assistant", **answer}, "finish_reason": finish}
    return ExchangeRecord(
        id=exchange_id,
        project_id=key.agent.project_id,
        agent_id=key.agent_id,
        key_id=key.id,
        version_id="",
        engine_id="",
        trajectory_id="",
        session_key=told.get("session_key", ""),
        dialect="chat",
        response_id=f"chatcmpl-{exchange_id}",
        request=json.dumps({"messages": messages, "tools": told.get("tools", [])}).encode(),
        headers=b"{}",
        response=json.dumps({"id": exchange_id, "choices": [choice]}).encode(),
        prompt_token_ids=pack_ids(prompt),
        completion_token_ids=(pack_ids(completion),),
        completion_logprobs=(pack_logprobs([-0.5] * len(completion)),),
        sampling=b"{}",
        status="complete",
        error="",
        is_streamed=False,
        is_exact=True,
        started_at=now,
        first_token_at=now,
        ended_at=now,
    )
