"""Whoever writes many steps has Postgres plan the check of their keys once, not for each of them."""

from collections.abc import Iterator

import pytest
from django.db import connection
from rest_framework.test import APIClient

from apps.accounts.models import Agent, ApiKey
from apps.trajectories.models import Step
from apps.trajectories.recorder import fold_pending
from tests.apps.trajectories.datasets.import_rows import CHAT
from tests.apps.trajectories.datasets.importer import ImportRows
from tests.factories.trajectories import ExchangeFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _plans_once_from_then_on() -> Iterator[None]:
    """For the rest of the transaction, which is the test's own."""
    assert read_plan_mode() == "auto"
    yield
    assert (Step.objects.exists(), read_plan_mode()) == (True, "force_generic_plan")


def read_plan_mode() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW plan_cache_mode")
        return str(cursor.fetchone()[0])


def test_the_recorder(key: ApiKey) -> None:
    ExchangeFactory.create(key=key)
    fold_pending()


def test_an_import(import_rows: ImportRows) -> None:
    import_rows(CHAT)


def test_who_submits_steps(key_client: APIClient, agent: Agent) -> None:
    trajectory = TrajectoryFactory.create(agent=agent)
    body = {"steps": [{"prompt_ids": [1], "response_ids": [2], "log_probs": [-0.5]}]}
    assert key_client.post(f"/api/v1/trajectories/{trajectory.id}/steps", body).status_code == 201
