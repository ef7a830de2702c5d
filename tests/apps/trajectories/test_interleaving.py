"""Many sessions of one agent at once, without any mark, all saying the same: none is taken for another."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from apps.accounts.models import ApiKey
from apps.trajectories.models import Exchange, Step, Trajectory
from apps.trajectories.recorder import fold_pending
from tests.factories.trajectories import ExchangeFactory

pytestmark = pytest.mark.django_db

N_SESSIONS, N_TURNS = 50, 4
CARRIER = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\n{}\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"

Messages = list[dict[str, Any]]


def converse(ask: Callable[[int], str], *, system: Callable[[int], str] = lambda _: "You help.") -> Iterator[Messages]:
    """Yield the requests of one session; every answer is OK."""
    history: Messages = []
    for turn in range(N_TURNS):
        history.append({"role": "user", "content": ask(turn)})
        yield [{"role": "system", "content": system(turn)}, *history]
        history.append({"role": "assistant", "content": "OK"})


def interleave(sessions: list[Iterator[Messages]]) -> Iterator[tuple[int, Messages]]:
    """Yield the sessions' requests in a random order that keeps each session's own."""
    order = random.Random(5)
    alive = dict(enumerate(sessions))
    while alive:
        number = order.choice(sorted(alive))
        request = next(alive[number], None)
        if request is None:
            del alive[number]
        else:
            yield number, request


def play(key: ApiKey, sessions: list[Iterator[Messages]]) -> dict[str, int]:
    """Record all calls and return each exchange's session."""
    owners: dict[str, int] = {}
    for number, request in interleave(sessions):
        owners[ExchangeFactory.create(key=key, messages=request, answers=[{"content": "OK"}]).id] = number
    while fold_pending():
        pass
    assert not Exchange.objects.set_aside().exists()
    return owners


def assert_apart(owners: dict[str, int]) -> None:
    """Each session is one trajectory, each trajectory one session and one unbroken line."""
    steps = Step.objects.values_list("id", "exchange_id", "trajectory_id", "parent_id")
    pairs = {(owners[exchange_id], trajectory_id) for _, exchange_id, trajectory_id, _ in steps}
    assert len(pairs) == N_SESSIONS == Trajectory.objects.count()
    assert_unbroken()


def assert_unbroken() -> None:
    parents = Counter(Step.objects.exclude(parent=None).values_list("parent_id", flat=True))
    assert Step.objects.filter(parent=None).count() == N_SESSIONS
    assert set(parents.values()) == {1}
    assert set(Trajectory.objects.values_list("n_steps", flat=True)) == {N_TURNS}


def test_sessions_that_ask_different_things_stay_apart(key: ApiKey) -> None:
    assert_apart(play(key, [converse(lambda turn, n=n: f"{n}, {turn}?") for n in range(N_SESSIONS)]))  # type: ignore[misc]


def test_sessions_that_differ_only_in_their_first_words_stay_apart(key: ApiKey) -> None:
    def ask(number: int) -> Callable[[int], str]:
        return lambda turn: "go on" if turn else f"I am {number}"

    assert_apart(play(key, [converse(ask(number)) for number in range(N_SESSIONS)]))


def test_a_new_date_in_the_system_text_mixes_nobody_up(key: ApiKey) -> None:
    def ask(number: int) -> Callable[[int], str]:
        return lambda turn: "go on" if turn else f"I am {number}"

    def tell_date(turn: int) -> str:
        return f"You help. Today is the {turn // 2}th."

    assert_apart(play(key, [converse(ask(number), system=tell_date) for number in range(N_SESSIONS)]))


def test_openclaws_transient_block_mixes_nobody_up(key: ApiKey) -> None:
    def with_block(number: int, requests: Iterator[Messages]) -> Iterator[Messages]:
        for turn, request in enumerate(requests):
            yield [*request, {"role": "user", "content": CARRIER.format(f"{number} {turn}")}]

    sessions = [with_block(n, converse(lambda turn, n=n: f"{n % 7} {turn}")) for n in range(N_SESSIONS)]  # type: ignore[misc]
    play(key, sessions)
    assert_unbroken()


def test_sessions_that_are_equal_to_the_letter_each_keep_a_line_of_their_own(key: ApiKey) -> None:
    play(key, [converse(lambda _: "go on") for _ in range(N_SESSIONS)])
    assert_unbroken()


def test_a_fork_goes_on_beside_its_twin_and_joins_no_other_session(key: ApiKey) -> None:
    owners = play(key, [converse(lambda turn, n=n: f"{n}, {turn}?") for n in range(N_SESSIONS)])  # type: ignore[misc]
    number, request = next(iter(interleave([converse(lambda turn: f"0, {turn}?")])))
    edited = [*request, {"role": "assistant", "content": "OK"}, {"role": "user", "content": "something else"}]
    fork = ExchangeFactory.create(key=key, messages=edited, answers=[{"content": "OK"}])
    fold_pending()
    step = Step.objects.select_related("parent").get(exchange_id=fork.id)
    assert step.parent is not None
    assert owners[step.parent.exchange_id] == number == 0
    assert Trajectory.objects.count() == N_SESSIONS
