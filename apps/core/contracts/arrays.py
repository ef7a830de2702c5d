"""Token ids and log-probs as bytes: int32 and float32, little-endian, nothing else. Knows no tokenizer and no model."""

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import TypeVar

ID_BYTES = 4
N = TypeVar("N", int, float)


def pack_ids(ids: Sequence[int]) -> bytes:
    """Return token ids as int32, (T,) → 4T bytes. Raises OverflowError for an id that does not fit, or is none."""
    try:
        data = struct.pack(f"<{len(ids)}I", *ids)  # in half of an array's time; refuses what is negative
    except struct.error as error:
        raise OverflowError(str(error)) from error
    if not data[ID_BYTES - 1 :: ID_BYTES].isascii():  # a highest bit, which as int32 makes a number negative
        raise OverflowError(f"an id is {2**31} or more")
    return data


def unpack_ids(data: bytes) -> list[int]:
    """Return the ids that `pack_ids` packed. Raises ValueError when the length is not a multiple of four."""
    return _unpack(array("i"), data).tolist()


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """Return log-probs (nats) as float32, (T,) → 4T bytes."""
    values = array("f", logprobs)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def unpack_logprobs(data: bytes) -> list[float]:
    """Return the log-probs that `pack_logprobs` packed. Raises ValueError when the length is not a multiple of four."""
    return _unpack(array("f"), data).tolist()


def _unpack(values: "array[N]", data: bytes) -> "array[N]":
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
