"""Who goes to an engine, who waits, and who is sent away."""

import asyncio
import time
from collections.abc import Callable

import pytest
from pytest_django.fixtures import Settings

from apps.gateway.engine_gate import EngineGate, EnginesBusyError, EngineUnavailableError, Wanted
from apps.gateway.routes import EngineRoute

Line = list[str]


def route(name: str = "a", *, limit: int | None = None, is_up: bool = True, fault: str = "") -> EngineRoute:
    return EngineRoute(
        id=name, base_url=f"http://{name}", base_model="tiny", is_up=is_up, max_in_flight=limit, fault=fault
    )


def wanted(*engines: EngineRoute, project: str = "A", version: str = "v0", session: str = "") -> Wanted:
    return Wanted(find_engines=lambda: list(engines), project_id=project, version_id=version, session=session)


@pytest.fixture
def queue_of(settings: Settings) -> Callable[[int], None]:
    def set_length(length: int) -> None:
        settings.CLAW = settings.CLAW.model_copy(update={"engine_queue": length})

    return set_length


async def soon() -> None:
    """Let every task go on as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def enter(gate: EngineGate, want: Wanted, *, wait_s: float = 5, is_again: bool = False) -> asyncio.Task[EngineRoute]:
    return asyncio.create_task(gate.enter(want, until=time.monotonic() + wait_s, is_again=is_again))


def note(name: str, task: asyncio.Task[EngineRoute], order: Line) -> None:
    task.add_done_callback(lambda _: order.append(name))


async def test_projects_take_turns_and_within_one_the_first_is_first() -> None:
    gate, engine, order = EngineGate(), route(limit=1), list[str]()
    await gate.enter(wanted(engine), until=0)
    tasks = []
    for name in ("A1", "A2", "A3", "B1", "B2", "C1"):
        tasks.append(enter(gate, wanted(engine, project=name[0])))
        note(name, tasks[-1], order)
        await soon()
    assert gate.n_waiting == 6

    for _ in range(6):
        gate.leave(engine)
        await soon()

    assert order == ["A1", "B1", "C1", "A2", "B2", "A3"]
    assert (gate.n_waiting, gate.n_in_flight) == (0, 1)


async def test_nobody_overtakes_those_who_wait() -> None:
    gate, engine = EngineGate(), route(limit=1)
    await gate.enter(wanted(engine), until=0)
    first = enter(gate, wanted(engine))
    await soon()
    late = enter(gate, wanted(engine))
    gate.leave(engine)
    await soon()
    assert first.done()
    assert not late.done()
    late.cancel()


async def test_a_call_that_comes_again_keeps_its_place() -> None:
    gate, engine, order = EngineGate(), route(limit=1), list[str]()
    await gate.enter(wanted(engine), until=0)
    tasks = [enter(gate, wanted(engine)), enter(gate, wanted(engine))]
    await soon()
    tasks.append(enter(gate, wanted(engine), is_again=True))
    await soon()
    for name, task in zip(("first", "second", "again"), tasks, strict=True):
        note(name, task, order)
    for _ in tasks:
        gate.leave(engine)
        await soon()
    assert order == ["again", "first", "second"]


async def test_who_waited_too_long_is_told_that_all_are_busy() -> None:
    gate, engine = EngineGate(), route(limit=1)
    await gate.enter(wanted(engine), until=0)
    began = time.monotonic()
    with pytest.raises(EnginesBusyError, match="busy") as caught:
        await gate.enter(wanted(engine), until=began + 0.2)
    assert 0.2 <= time.monotonic() - began < 5
    assert (caught.value.code, caught.value.retry_after_s > 0) == ("engines_busy", True)
    assert (gate.n_waiting, gate.n_in_flight) == (0, 1)


async def test_a_version_without_an_engine_holds_up_only_its_own_callers() -> None:
    gate, engine = EngineGate(), route(limit=1)
    await gate.enter(wanted(engine), until=0)
    absent = enter(gate, wanted(version="v1"), wait_s=0.3)
    await soon()
    present = enter(gate, wanted(engine))
    await soon()
    gate.leave(engine)
    assert await present == engine
    with pytest.raises(EngineUnavailableError, match="no engine has this version") as caught:
        await absent
    assert caught.value.code == "engine_unavailable"


async def test_a_call_waits_for_a_version_that_is_being_loaded() -> None:
    gate, engines = EngineGate(), list[EngineRoute]()
    task = enter(gate, Wanted(find_engines=lambda: engines))
    await soon()
    assert not task.done()
    engines.append(route())
    assert (await task).id == "a"


async def test_a_call_that_only_a_person_can_help_does_not_wait() -> None:
    with pytest.raises(EngineUnavailableError, match="sealed") as caught:
        await EngineGate().enter(wanted(route(fault="sealed with another key")), until=time.monotonic() + 60)
    assert caught.value.code == "engine_misconfigured"
    mixed = wanted(route(fault="sealed"), route("b"))
    assert (await EngineGate().enter(mixed, until=0)).id == "b"


async def test_who_stops_waiting_leaves_the_line() -> None:
    gate, engine = EngineGate(), route(limit=1)
    await gate.enter(wanted(engine), until=0)
    task = enter(gate, wanted(engine))
    await soon()
    task.cancel()
    await soon()
    assert (gate.n_waiting, gate.n_in_flight) == (0, 1)


async def test_a_place_given_to_one_who_leaves_at_that_moment_is_not_lost() -> None:
    gate, engine = EngineGate(), route(limit=1)
    await gate.enter(wanted(engine), until=0)
    leaver, heir = enter(gate, wanted(engine)), enter(gate, wanted(engine))
    await soon()
    gate.leave(engine)
    leaver.cancel()
    assert await heir == engine
    assert leaver.cancelled()
    assert (gate.n_waiting, gate.n_in_flight) == (0, 1)


async def test_a_full_line_refuses_the_project_that_fills_it(queue_of: Callable[[int], None]) -> None:
    queue_of(2)
    gate, engine = EngineGate(), route(limit=1)
    await gate.enter(wanted(engine), until=0)
    first, last = enter(gate, wanted(engine)), enter(gate, wanted(engine))
    await soon()
    with pytest.raises(EnginesBusyError, match="too many"):
        await gate.enter(wanted(engine), until=time.monotonic() + 60)

    other = enter(gate, wanted(engine, project="B"))  # it has none waiting: the last of the others makes room
    await soon()
    with pytest.raises(EnginesBusyError, match="too many"):
        await last
    assert gate.n_waiting == 2
    first.cancel()
    other.cancel()


async def test_engines_known_to_be_up_come_first_and_those_that_are_not_are_a_last_resort() -> None:
    up, down = route("up", limit=1), route("down", is_up=False)
    gate = EngineGate()
    assert gate.take(wanted(down, up)) == up
    assert gate.take(wanted(down, up)) is None  # better wait for one that is well than ask one that is not
    assert gate.take(wanted(down)) == down


async def test_a_resting_engine_is_avoided_then_tried_by_one_call() -> None:
    gate, engine, other = EngineGate(), route("a"), route("b")
    gate.marks.note_unreachable("a", reason="refused")
    assert [gate.take(wanted(engine, other)) for _ in range(3)] == [other] * 3

    first, second = enter(gate, wanted(engine)), enter(gate, wanted(engine))
    assert (await first, second.done()) == (engine, False)
    gate.note_reached(engine)
    await soon()
    assert second.done()


async def test_who_waits_for_engines_that_rest_hears_why() -> None:
    gate, engine = EngineGate(), route()
    gate.marks.note_unreachable("a", reason="connection refused")
    with pytest.raises(EngineUnavailableError, match="connection refused") as caught:
        await gate.enter(wanted(engine), until=time.monotonic() + 0.1)
    assert caught.value.code == "engine_unavailable"
