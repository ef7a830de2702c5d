"""The session rule by itself, over a pool in memory."""

import time
from typing import Any

from apps.trajectories.messages import Message
from apps.trajectories.sessions import Candidate, Story, find_parent, measure_overlap, read_story, step_digests


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def called(call_id: str) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": {"name": "f"}}]}


class Pool:
    """Steps as the rule sees them."""

    def __init__(self) -> None:
        self.steps: list[Candidate] = []

    def add(self, messages: list[Message], answer: Message, *, scope: str = "key", **fields: Any) -> str:
        story = read_story(messages)
        digests = step_digests(scope, story=story, answer=answer, body_digest="")
        name = f"step{len(self.steps):03}"

        def load() -> Story:
            return story

        self.steps.append(
            Candidate(
                step_id=name,
                order=name,
                load_story=load,
                digests=frozenset(digests),
                **{"trajectory_id": "t", "is_leaf": True, **fields},
            )
        )
        return name

    def parent_of(self, messages: list[Message], *, scope: str = "key", is_one_session: bool = False) -> str | None:
        def look_up(digests: Any) -> list[Candidate]:
            return [step for step in self.steps if step.digests & set(digests)]

        found = find_parent(scope, story=read_story(messages), lookup=look_up, is_scope_one_session=is_one_session)
        return found.step_id if found else None


def test_a_first_message_starts_anew() -> None:
    pool = Pool()
    pool.add([user("hi")], said("OK"))
    assert pool.parent_of([user("hi")]) is None
    assert pool.parent_of([user("hi"), user("hello?")]) is None


def test_a_follow_up_goes_on_from_what_we_said() -> None:
    pool = Pool()
    step = pool.add([user("hi")], said("OK"))
    assert pool.parent_of([user("hi"), said("OK"), user("more")]) == step


def test_of_many_equal_answers_the_one_with_the_same_history_is_meant() -> None:
    pool = Pool()
    steps = [pool.add([system("s"), user(text)], said("OK")) for text in "abc"]
    assert pool.parent_of([system("s"), user("b"), said("OK"), user("more")]) == steps[1]


def test_an_answer_that_only_looks_like_ours_is_not() -> None:
    pool = Pool()
    pool.add([system("s"), user("a")], said("OK"))
    assert pool.parent_of([system("other"), user("b"), said("OK"), user("more")]) is None
    assert pool.parent_of([system("other"), user("a"), said("OK"), user("more")]) is None


def test_twins_take_turns() -> None:
    pool = Pool()
    first = pool.add([user("hi")], said("OK"))
    pool.add([user("hi")], said("OK"), is_leaf=False)
    assert pool.parent_of([user("hi"), said("OK"), user("more")]) == first


def test_what_a_retry_replaced_is_no_twin() -> None:
    pool = Pool()
    pool.add([user("hi")], said("OK"), is_excluded=True)
    retry = pool.add([user("hi")], said("OK"), is_leaf=False)
    assert pool.parent_of([user("hi"), said("OK"), user("more")]) == retry


def test_a_twin_that_is_kept_out_is_still_a_twin() -> None:
    pool = Pool()
    first = pool.add([user("hi")], said("OK"), is_excluded=True, trajectory_id="another")
    pool.add([user("hi")], said("OK"), is_leaf=False)
    assert pool.parent_of([user("hi"), said("OK"), user("more")]) == first


def test_keys_do_not_see_each_other() -> None:
    pool = Pool()
    pool.add([user("hi")], said("OK"), scope="key one")
    assert pool.parent_of([user("hi"), said("OK"), user("more")], scope="key two") is None


def test_a_unique_call_id_is_enough() -> None:
    pool = Pool()
    step = pool.add([system("s"), user("a")], called("call_0123456789abcdef01234567"))
    rewritten = [system("new date"), user("summary"), called("call0123456789abcdef01234567"), user("x")]
    assert pool.parent_of(rewritten) == step


def test_a_clients_own_call_id_needs_more() -> None:
    pool = Pool()
    step = pool.add([system("s"), user("a")], called("call_1"))
    assert pool.parent_of([system("s"), user("b"), called("call_1"), user("x")]) is None
    assert pool.parent_of([system("new"), user("a"), called("call_1"), user("x")]) == step


def test_the_date_in_a_system_text_may_change() -> None:
    pool = Pool()
    step = pool.add([system("today is the 1st"), user("a"), said("b"), user("c")], said("OK"))
    assert pool.parent_of([system("today is the 2nd"), user("a"), said("b"), user("c"), said("OK"), user("d")]) == step


def test_a_compacted_history_goes_on_from_its_kept_tail() -> None:
    pool = Pool()
    step = pool.add([system("s"), user("a"), said("b"), user("c")], said("OK"))
    assert pool.parent_of([system("s"), user("summary of a and b"), user("c"), said("OK"), user("d")]) == step


def test_in_a_named_session_our_answer_is_enough_of_a_compacted_history() -> None:
    pool = Pool()
    step = pool.add([system("s"), user("a")], said("an answer"))
    compacted = [system("s2"), user("summary"), said("an answer"), user("b")]
    assert pool.parent_of(compacted) is None
    assert pool.parent_of(compacted, is_one_session=True) == step
    pool.add([system("s"), user("a2")], said("an answer"))
    assert pool.parent_of(compacted, is_one_session=True) is None


def test_a_client_that_rewrites_our_words_is_linked_by_its_history() -> None:
    pool = Pool()
    first = pool.add([system("s"), user("task")], said("Thought: look"))
    second = pool.add([system("s"), user("task"), said("I looked"), user("seen")], said("Thought: done"))
    assert pool.parent_of([system("s"), user("task"), said("I looked"), user("seen")]) == first
    rewritten = [system("s"), user("task"), said("I looked"), user("seen"), said("It is done"), user("bye")]
    assert pool.parent_of(rewritten) == second


def test_inside_a_named_session_less_is_enough() -> None:
    pool = Pool()
    step = pool.add([user("a")], said("b"))
    assert pool.parent_of([user("a"), user("again, please")]) is None
    assert pool.parent_of([user("a"), user("again, please")], is_one_session=True) == step


def test_a_fork_is_a_second_child() -> None:
    pool = Pool()
    step = pool.add([user("a")], said("b"))
    pool.add([user("a"), said("b"), user("left")], said("l"))
    assert pool.parent_of([user("a"), said("b"), user("right")]) == step


def test_overlap_is_counted_from_both_ends_without_system_text() -> None:
    story = read_story([system("1"), user("a"), user("b"), said("x"), user("c"), said("y"), user("next")])
    earlier = read_story([system("2"), user("a"), user("B"), said("x"), user("c")])
    overlap = measure_overlap(story, earlier)
    assert (overlap.prefix, overlap.suffix, overlap.is_same_system) == (1, 2, False)


def test_a_very_long_conversation_takes_its_length_and_no_more() -> None:
    n_turns = 40_000
    history = [said(str(n)) if n % 2 else user(str(n)) for n in range(2 * n_turns)]
    pool = Pool()
    start = time.process_time()
    step = pool.add(history[:-1], history[-1])
    assert pool.parent_of([*history, user("more")]) == step
    another = [user("other"), *history[1:-1], said("another end"), user("more")]
    assert pool.parent_of(another) is None  # every beginning was looked for
    assert time.process_time() - start < 15  # it takes 2; what grows by the square takes minutes
