"""Starts the test run's servers before anything reads Django's settings; loaded by `-p tests.plugin`."""

import secrets
from collections.abc import Generator

import pytest

from tests.services import Services

_services = pytest.StashKey[Services]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Wrap the hook, since pytest-django reads the settings inside it."""
    early_config.stash[_services] = Services.start()
    return (yield)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the options of `tests/chaos`, which is no place for them: its conftest is read after the command line."""
    parser.addoption("--chaos-rounds", type=int, default=1, help="how often each drill of tests/chaos does its harm")
    parser.addoption("--chaos-seed", type=int, default=secrets.randbelow(10**6), help="repeats the moments of a drill")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop them."""
    services = config.stash.get(_services, None)
    if services is not None:
        services.stop()
