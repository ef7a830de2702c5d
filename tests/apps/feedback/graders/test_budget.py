"""The day's budget of a grader: calls are taken out of it before they are made, and several workers stay within it."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest
import time_machine
from django.db import connection

from apps.feedback.graders.budget import next_day, reserve_calls, settle_calls
from apps.feedback.graders.models import DailyCalls
from tests.apps.feedback.graders.conftest import MakeVersion


@pytest.fixture
def grader_id(make_version: MakeVersion) -> str:
    return make_version("judge").grader_id


@pytest.mark.django_db
@pytest.mark.parametrize(("n_questions", "taken"), [(1, 2), (2, 4), (3, 4)])
def test_whole_questions_are_paid_for(grader_id: str, n_questions: int, taken: int) -> None:
    assert reserve_calls(grader_id, budget=5, each=2, n_questions=n_questions).n_calls == taken


@pytest.mark.django_db
def test_what_was_not_needed_is_given_back(grader_id: str) -> None:
    reserved = reserve_calls(grader_id, budget=4, each=2, n_questions=2)
    assert reserve_calls(grader_id, budget=4, each=2, n_questions=1).n_calls == 0
    settle_calls(reserved, n_made=1)
    assert DailyCalls.objects.get().n_calls == 1
    assert reserve_calls(grader_id, budget=4, each=1, n_questions=9).n_calls == 3


@pytest.mark.django_db
def test_each_day_has_its_own_and_calls_count_for_the_day_that_paid(grader_id: str) -> None:
    evening = datetime(2030, 5, 1, 23, 59, tzinfo=UTC)
    with time_machine.travel(evening, tick=False):
        late = reserve_calls(grader_id, budget=2, each=1, n_questions=2)
        assert next_day() == datetime(2030, 5, 2, tzinfo=UTC)
    with time_machine.travel(evening + timedelta(hours=1), tick=False):
        assert reserve_calls(grader_id, budget=2, each=1, n_questions=5).n_calls == 2
        settle_calls(late, n_made=0)
    assert {row.day.day: row.n_calls for row in DailyCalls.objects.all()} == {1: 0, 2: 2}


@pytest.mark.django_db(transaction=True)
def test_workers_at_once_stay_within_it(grader_id: str) -> None:
    together = Barrier(4)

    def reserve(_number: int) -> int:
        together.wait()
        try:
            return reserve_calls(grader_id, budget=10, each=3, n_questions=2).n_calls
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        taken = sorted(threads.map(reserve, range(4)))
    assert taken == [0, 0, 3, 6]
