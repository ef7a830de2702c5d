"""Sessions stay where they are, unless that costs too much."""

from collections import Counter
from dataclasses import dataclass

import pytest

from apps.gateway.placement import choose_engine, choose_share, find_affinity

SESSIONS = [f"session-{number}" for number in range(10_000)]


@dataclass(frozen=True)
class Place:
    id: str
    max_in_flight: int | None = None


def home(session: str, places: list[Place]) -> str:
    chosen = choose_engine(places, loads={}, session=session)
    assert chosen is not None
    return chosen.id


def test_an_engine_that_goes_moves_only_its_own_sessions() -> None:
    places = [Place(name) for name in "abcde"]
    before = {session: home(session, places) for session in SESSIONS}
    after = {session: home(session, [place for place in places if place.id != "c"]) for session in SESSIONS}

    moved = {session for session in SESSIONS if before[session] != after[session]}
    assert moved == {session for session in SESSIONS if before[session] == "c"}
    # 2,000 each of 10,000, give or take four standard deviations of 40; c's are spread over the four others.
    assert all(abs(count - 2000) < 160 for count in Counter(before.values()).values())
    assert all(abs(count - 2500) < 180 for count in Counter(after.values()).values())


def test_the_order_of_the_engines_does_not_matter() -> None:
    places = [Place(name) for name in "abcde"]
    assert all(home(session, places) == home(session, places[::-1]) for session in SESSIONS[:500])


@pytest.mark.parametrize(
    ("load", "stays"),
    [
        (0, True),
        (10, True),  # mean 5, bound 1.25 * 5 + 4 = 10.25
        (11, False),  # mean 5.5, bound 10.875
        (40, False),
    ],
)
def test_a_session_leaves_an_engine_that_has_far_more_than_its_part(load: int, *, stays: bool) -> None:
    places = [Place("a"), Place("b")]
    session = next(session for session in SESSIONS if home(session, places) == "a")

    chosen = choose_engine(places, loads={"a": load, "b": 0}, session=session)

    assert chosen == (places[0] if stays else places[1])


def test_a_crowd_of_one_session_is_spread_within_the_bound() -> None:
    places = [Place(name) for name in "abc"]
    loads: Counter[str] = Counter()
    for _ in range(300):
        chosen = choose_engine(places, loads=loads, session="the same")
        assert chosen is not None
        loads[chosen.id] += 1

    # The bound before the last call: 1.25 * 299 / 3 + 4 = 128.6.
    assert max(loads.values()) <= 129
    assert loads.total() == 300


def test_a_full_engine_is_passed_by_and_all_full_is_none() -> None:
    places = [Place("a", 2), Place("b", 1)]
    session = next(session for session in SESSIONS if home(session, places) == "a")

    assert choose_engine(places, loads={"a": 1}, session=session) == places[0]
    assert choose_engine(places, loads={"a": 2}, session=session) == places[1]
    assert choose_engine(places, loads={"a": 2, "b": 1}, session=session) is None
    assert choose_engine([], loads={}, session=session) is None


def test_without_a_session_the_least_busy_is_chosen() -> None:
    places = [Place("a"), Place("b"), Place("c")]
    assert choose_engine(places, loads={"a": 2, "b": 1, "c": 3}, session="") == places[1]


def test_shares_hold_over_many_sessions_and_a_session_keeps_its_own() -> None:
    shares = (("candidate", 10), ("previous", 25))
    chosen = [choose_share(shares, session=session) for session in SESSIONS]

    counts = Counter(chosen)
    # Binomial: standard deviations of 30, 43 and 48; four of each are allowed.
    assert abs(counts["candidate"] - 1000) < 120
    assert abs(counts["previous"] - 2500) < 172
    assert abs(counts[None] - 6500) < 192
    assert [choose_share(shares, session=session) for session in SESSIONS] == chosen


def test_a_larger_share_keeps_the_sessions_of_the_smaller() -> None:
    def members(share: int) -> set[str]:
        return {session for session in SESSIONS if choose_share((("candidate", share),), session=session)}

    assert members(0) == set()
    assert members(10) < members(20)
    assert len(members(99)) < len(SESSIONS)


def test_the_split_does_not_go_by_engine() -> None:
    places = [Place("a"), Place("b")]
    candidates = [session for session in SESSIONS if choose_share((("candidate", 50),), session=session)]
    on_a = sum(home(session, places) == "a" for session in candidates)
    assert abs(on_a / len(candidates) - 0.5) < 0.04


def test_a_chat_without_a_key_is_known_by_how_it_opens() -> None:
    system, user = {"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}
    first = find_affinity("", [system, user])

    assert (
        find_affinity("", [system, user, {"role": "assistant", "content": "hi"}, {**user, "content": "more"}]) == first
    )
    assert find_affinity("", [{**system, "role": "developer"}, user]) == first
    assert find_affinity("", [system, {**user, "content": "bye"}]) != first
    assert find_affinity("", [{**system, "content": [{"type": "text", "text": "x"}]}, user]) != first
    assert find_affinity("thread-7", [system, user]) == "thread-7"
    assert find_affinity("", []) == find_affinity("", ["no message", {"role": []}]) == ""
