"""Of all steps, the one with the longest common prefix is found, and repeated prompts are siblings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.accounts.models import Agent
from apps.core.contracts.arrays import pack_ids
from apps.trajectories.token_index import TokenIndex, load_token_index
from apps.trajectories.trie import split_tokens
from tests.factories.trajectories import StepFactory, TrajectoryFactory

tokens = st.lists(st.sampled_from([0, 1, 255, 256, 65536]), min_size=1, max_size=8).map(pack_ids)


@given(steps=st.lists(st.tuples(tokens, tokens), max_size=8), prompt=tokens)
def test_no_step_shares_more_than_the_one_found(steps: list[tuple[bytes, bytes]], prompt: bytes) -> None:
    index = TokenIndex()
    for number, (ids, completion) in enumerate(steps):
        index.add(f"s{number}", prompt=ids, completion=completion, parent=None)
    most = max((split_tokens(ids + completion, prompt)[0] for ids, completion in steps), default=0)
    found = index.find_parent(prompt)
    if found is not None:
        assert split_tokens(found.context, prompt)[0] == most
    else:  # nothing in common, or a prompt that another step had already
        assert most in {0, len(prompt) // 4}


def test_a_prompt_that_was_there_before_goes_on_from_where_the_first_did() -> None:
    index = TokenIndex()
    root = index.add("root", prompt=pack_ids([1]), completion=pack_ids([2]), parent=None)
    index.add("first", prompt=pack_ids([1, 2, 3]), completion=pack_ids([4]), parent=root)
    assert index.find_parent(pack_ids([1, 2, 3])) is root
    assert index.find_parent(pack_ids([1])) is None


def test_of_equal_steps_the_latest_is_gone_on_from() -> None:
    index = TokenIndex()
    index.add("s1", prompt=pack_ids([1]), completion=pack_ids([2]), parent=None)
    index.add("s2", prompt=pack_ids([1]), completion=pack_ids([2]), parent=None)
    found = index.find_parent(pack_ids([1, 2, 3]))
    assert found is not None
    assert found.step_id == "s2"


@pytest.mark.django_db
def test_it_is_loaded_from_stored_steps(agent: Agent) -> None:
    trajectory = TrajectoryFactory.create(agent=agent)
    first = StepFactory.create(trajectory=trajectory, index=0, prompt_ids=[1, 2], completion_ids=[3])
    second = StepFactory.create(
        trajectory=trajectory, index=1, parent=first, shared_tokens=3, prompt_ids=[9], completion_ids=[5]
    )
    StepFactory.create(trajectory=trajectory, index=2, prompt_ids=[], completion_ids=[])
    index = load_token_index(trajectory)
    found = index.find_parent(pack_ids([1, 2, 3, 9, 5, 7]))
    assert found is not None
    assert (found.step_id, found.parent) == (second.id, index.find_node(first.id))
