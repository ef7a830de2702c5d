"""The ids of output items. Each holds its answer's own id, so that what comes back can be put together again."""

from typing import Any

from apps.core.ids import is_id

RESPONSE_PREFIX = "resp_"
_N_PLACE = 2  # hex digits


def name_item(prefix: str, *, response_id: str, place: int) -> str:
    """Return `msg_<the answer's id><place>`."""
    return f"{prefix}_{response_id.removeprefix(RESPONSE_PREFIX)}{place:0{_N_PLACE}x}"


def answer_of_item(item_id: Any) -> str:
    """Return the id of the answer that the item is of, "" when it is none of ours."""
    rest = item_id.partition("_")[2] if isinstance(item_id, str) else ""
    response_id = RESPONSE_PREFIX + rest[:-_N_PLACE]
    return response_id if is_id(response_id, RESPONSE_PREFIX[:-1]) else ""
