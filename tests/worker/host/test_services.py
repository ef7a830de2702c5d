"""The test run's own servers are the real ones."""

import os

import pytest
import redis
from django.db import connection


@pytest.mark.django_db
def test_it_runs_on_a_real_postgres() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version_num")
        assert int(cursor.fetchone()[0]) >= 180000


def test_it_runs_on_a_real_valkey() -> None:
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        assert client.ping()
