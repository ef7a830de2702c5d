"""A database that is away is told as such at every door."""

from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection
from django.test import Client

from apps.console.middleware import RETRY_AFTER_S


def lose_connection(*_asked: Any) -> Any:
    raise OperationalError("the connection is lost") from psycopg.OperationalError("the connection is lost")


def run_out_of_time(*_asked: Any) -> Any:
    raise OperationalError("canceled") from psycopg.errors.QueryCanceled("canceled")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("address", ["/api/v1/trajectories", "/p/shop/trajectories"])
def test_without_a_database_one_is_told_when_to_try_again(address: str, owner_browser: Client) -> None:
    with connection.execute_wrapper(lose_connection):
        answer = owner_browser.get(address)
    assert (answer.status_code, answer["Retry-After"]) == (503, str(RETRY_AFTER_S))
    assert "database does not answer" in answer.content.decode()


@pytest.mark.usefixtures("project")
def test_other_faults_of_the_database_are_not_dressed_up(owner_browser: Client) -> None:
    with connection.execute_wrapper(run_out_of_time), pytest.raises(OperationalError):
        owner_browser.get("/p/shop/trajectories")
