"""Folding waits for calls that are still on the disk: a conversation's turns are folded in their order."""

from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from apps.accounts.models import ApiKey
from apps.core.contracts.exchange import SPOOL_FOLDER, SPOOL_SUFFIX
from apps.core.ids import new_id
from apps.trajectories import spool_hold
from apps.trajectories.models import Exchange, Step
from apps.trajectories.recorder import fold_agent, fold_pending
from apps.trajectories.spool_hold import LONGEST_S, SpoolHold
from tests.factories.trajectories import ExchangeFactory


@pytest.fixture
def spooled(settings: Settings, tmp_path: Path) -> Path:
    """A file of the spool that waits to be replayed."""
    settings.CLAW = settings.CLAW.model_copy(update={"data_dir": tmp_path})
    folder = tmp_path / SPOOL_FOLDER
    folder.mkdir()
    file = folder / f"1-dead{SPOOL_SUFFIX}"
    file.touch()
    return file


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> "Clock":
    clock = Clock()
    monkeypatch.setattr(spool_hold, "time", clock)
    return clock


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.django_db
def test_a_turn_waits_for_the_one_before_that_is_spooled(key: ApiKey, spooled: Path) -> None:
    first_id = new_id("exch")
    question, answer = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}
    second = ExchangeFactory.create(key=key, messages=[question, answer, {"role": "user", "content": "and now?"}])
    assert fold_pending() == 0
    assert fold_agent(second.agent_id) == 0
    assert Exchange.objects.unfolded().count() == 1

    ExchangeFactory.create(key=key, id=first_id, messages=[question], answers=[{"content": "hi"}])
    spooled.unlink()
    assert fold_pending() == 2

    parent = Step.objects.get(exchange_id=second.id).parent
    assert parent is not None
    assert parent.exchange_id == first_id


def test_it_does_not_wait_for_ever(spooled: Path, clock: Clock) -> None:
    hold = SpoolHold()
    for _ in range(int(LONGEST_S) - 2):
        assert hold.is_on()
        clock.now += 1
    clock.now += 2

    assert not hold.is_on()
    spooled.unlink()
    assert not hold.is_on()
    spooled.touch()
    assert hold.is_on()


def test_time_in_which_postgres_was_away_does_not_count(spooled: Path, clock: Clock) -> None:
    hold = SpoolHold()
    assert hold.is_on()
    clock.now += 10 * LONGEST_S

    assert hold.is_on()
