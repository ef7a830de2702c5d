"""The world of the drills, how often each harm is done (`--chaos-rounds`), and the table of what they came to."""

import logging
from collections.abc import Callable, Iterator

import pytest
from pytest_django.plugin import DjangoDbBlocker

from tests.chaos.tally import Tally
from tests.chaos.world import World

ROUND_S = 60
_tallies = pytest.StashKey[list[tuple[str, Tally]]]()

Note = Callable[[Tally], None]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_tallies] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Name the seed in the test's id, so that a failure tells it."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", [metafunc.config.getoption("--chaos-seed")])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(__file__.rpartition("/")[0]):
            item.add_marker(pytest.mark.timeout(120 + ROUND_S * config.getoption("--chaos-rounds")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell what each drill counted."""
    tallies = config.stash[_tallies]
    if not tallies:
        return
    terminalreporter.section("chaos")
    names = ("faults", "answered", "in pool", "lost", "doubled", "failed calls", "slowest")
    terminalreporter.write_line(f"{'':44}" + "".join(f"{name:>14}" for name in names))
    for name, tally in tallies:
        numbers = (tally.n_faults, tally.n_answered, tally.n_in_pool, tally.n_lost, tally.n_doubled, tally.n_failures)
        cells = "".join(f"{number:>14}" for number in numbers)
        terminalreporter.write_line(f"{name:44}{cells}{tally.slowest_s:>12.2f} s")


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How often the harm is done."""
    return int(request.config.getoption("--chaos-rounds"))


@pytest.fixture(scope="package")
def running_world(django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Its logs stay where pytest keeps the temporary folders of the last runs."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each call would hide what matters
    with django_db_blocker.unblock(), World(logs=tmp_path_factory.mktemp("chaos-logs")) as world:
        yield world


@pytest.fixture
def world(running_world: World, django_db_blocker: DjangoDbBlocker) -> Iterator[World]:
    """The world, whole, with Django's ORM pointed at its database."""
    with django_db_blocker.unblock(), running_world.orm():
        running_world.mend()
        yield running_world


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Puts a tally into the table; fails the test where it has problems."""

    def note_tally(tally: Tally) -> None:
        request.config.stash[_tallies].append((request.node.name, tally))
        assert not tally.problems, tally.describe()

    return note_tally
