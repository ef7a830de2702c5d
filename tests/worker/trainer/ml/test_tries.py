"""Tries: each distinct beginning is one node, nothing is lost, and what belongs together lies together."""

import pytest
import torch
from hypothesis import given

from tests.worker.trainer.ml.tries import Sequences, dense_mask, draw_sequences
from worker.trainer import tries
from worker.trainer.tries import Segment, Trie, count_shared, find_segments, pack

pytestmark = pytest.mark.usefixtures("share_everything")


@given(draw_sequences())
def test_each_distinct_beginning_is_one_node(sequences: Sequences) -> None:
    trie, paths = pack(sequences)
    beginnings = {sequence[:length] for sequence in sequences for length in range(1, len(sequence) + 1)}
    assert len(trie.token_ids) == len(beginnings)
    for sequence, path in zip(sequences, paths, strict=True):
        assert trie.token_ids[path].tolist() == list(sequence)
        assert trie.depths[path].tolist() == list(range(len(sequence)))


@given(draw_sequences())
def test_the_ends_say_who_is_an_ancestor(sequences: Sequences) -> None:
    trie, paths = pack(sequences)
    nodes = torch.arange(len(trie.ends))
    by_ends = (nodes[None] <= nodes[:, None]) & (nodes[:, None] < trie.ends[None])
    assert torch.equal(by_ends, dense_mask(trie))
    for path in paths:
        assert torch.nonzero(by_ends[path[-1]]).flatten().tolist() == path


@given(draw_sequences())
def test_segments_are_the_runs_between_branches(sequences: Sequences) -> None:
    trie, _ = pack(sequences)
    segments = find_segments(trie)
    assert [segment.start for segment in segments[1:]] == [segment.stop for segment in segments[:-1]]
    assert (segments[0].start, segments[-1].stop) == (0, len(trie.ends))
    for segment in segments:
        run = slice(segment.start, segment.stop)
        assert set(trie.ends[run].tolist()) == {segment.end}
        assert trie.depths[run].tolist() == list(range(trie.depths[run][0], trie.depths[run][-1] + 1))


def test_a_conversation_is_one_segment_and_an_aside_leaves_it() -> None:
    turns = [(1, 2), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6)]
    assert find_segments(pack(turns)[0]) == (Segment(start=0, stop=6, end=6),)
    aside = (1, 2, 9)
    assert find_segments(pack([*turns, aside])[0]) == (
        Segment(start=0, stop=2, end=7),
        Segment(start=2, stop=6, end=6),
        Segment(start=6, stop=7, end=7),
    )


def test_a_short_common_beginning_is_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "MIN_SHARED_TOKENS", 3)
    assert count_shared((1, 2, 3, 4), (1, 2, 3, 5)) == 3
    assert count_shared((1, 2, 4), (1, 2, 5)) == 0
    assert count_shared((1, 2, 3, 9), (1, 2, 3, *range(48))) == 3
    assert count_shared((1, 2, 3, 9), (1, 2, 3, *range(49))) == 0  # less than a sixteenth of what goes on from it
    assert count_shared((1, 2), (1, 2, *range(49))) == 2  # no branch
    trie, paths = pack([(1, 2, 4), (1, 2, 5)])
    assert trie.token_ids.tolist() == [1, 2, 4, 1, 2, 5]
    assert paths == [[0, 1, 2], [3, 4, 5]]


def test_a_trie_moves_to_another_device() -> None:
    trie, _ = pack([(1, 2)])
    moved = trie.to(torch.device("meta"))
    assert isinstance(moved, Trie)
    assert {tensor.device.type for tensor in vars(moved).values()} == {"meta"}
