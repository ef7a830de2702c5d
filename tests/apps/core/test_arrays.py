"""Packed ids and log-probs."""

from typing import Any

import pytest

from apps.core.contracts.arrays import pack_ids, pack_logprobs, unpack_ids, unpack_logprobs


def test_ids_are_int32_little_endian() -> None:
    assert pack_ids([1, 258]) == b"\x01\x00\x00\x00\x02\x01\x00\x00"
    assert unpack_ids(pack_ids([0, 151_643])) == [0, 151_643]


def test_logprobs_survive_to_float32() -> None:
    assert unpack_logprobs(pack_logprobs([-0.5, 0.0])) == [-0.5, 0.0]


def test_a_cut_array_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes length"):
        unpack_ids(b"\x01\x00\x00")


@pytest.mark.parametrize("odd", [-1, 2**31, 2**40, -(2**31), 1.0, "a"])
def test_what_is_no_token_id_is_refused(odd: Any) -> None:
    with pytest.raises(OverflowError):
        pack_ids([5, odd, 5])
    assert unpack_ids(pack_ids([2**31 - 1, 0])) == [2**31 - 1, 0]
