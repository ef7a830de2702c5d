"""Starts the test run's servers before anything reads Django's settings, and says which tests may go side by side.

Loaded by `-p tests.plugin`. Each worker of `-n` has a Postgres, a Valkey and a data folder of its own.
"""

import os
import random
import re
from collections.abc import Generator

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.services import Services

CHANCE = re.compile(r"(?<=_)[0-9a-hjkmnp-tv-z]{26}")  # of `apps.core.ids`
HEAVY = (  # real engines, trainers, browsers, and a world of servers that are killed
    "tests/e2e/",
    "tests/worker/engine/test_real_engine.py",
    "tests/worker/trainer/test_real_trainer.py",
    "tests/worker/tasks/test_real_runs.py",
    "tests/worker/test_in_ml_environment.py",
    "tests/chaos/",
    "tests/browser/",
)

_services = pytest.StashKey[Services]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Wrap the hook, since pytest-django reads the settings inside it."""
    has_workers = early_config.known_args_namespace.numprocesses and "PYTEST_XDIST_WORKER" not in os.environ
    early_config.stash[_services] = Services.start(has_servers=not has_workers)
    return (yield)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the options of `tests/clients` and `tests/chaos`: their conftests are read after the command line."""
    said = "only what drives somebody else's client: all of tests/clients, and what is marked so elsewhere"
    parser.addoption("--clients", action="store_true", help=said)
    parser.addoption("--chaos-rounds", type=int, default=1, help="how often each drill of tests/chaos does its harm")
    seed = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).randrange(10**6)  # the same in each worker
    parser.addoption("--chaos-seed", type=int, default=seed, help="repeats the moments of a drill")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Leave what chance made out of a test's name: each worker collects the tests by itself, and names must agree."""
    return CHANCE.sub("", val) if isinstance(val, str) and CHANCE.search(val) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not asked for, and have what loads the machine go first: a worker that is done with it helps
    with the rest.
    """
    asked_for = [item for item in items if _is_asked_for(item, has_clients=config.option.clients)]
    config.hook.pytest_deselected(items=list(set(items) - set(asked_for)))
    items[:] = sorted(asked_for, key=lambda item: not item.nodeid.startswith(HEAVY))


def _is_asked_for(item: pytest.Item, *, has_clients: bool) -> bool:
    is_long = item.get_closest_marker("clients") is not None
    return is_long or item.nodeid.startswith("tests/clients/") if has_clients else not is_long


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist tells no types
    """Gives a file's tests to one worker, and all that load the machine to one worker too, one after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return "heavy" if nodeid.startswith(HEAVY) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    """Have `-n` take the files in the order of collection."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop them."""
    services = config.stash.get(_services, None)
    if services is not None:
        services.stop()
