"""What placing a call reads of the pool is a few rows, however many steps there are."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.trajectories.known_steps import Among, KnownSteps
from apps.trajectories.models import Step
from tests.factories.trajectories import StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db

N_STEPS = 1000
OPTIONS = """
    SELECT part.relname, array_to_string(part.reloptions, ',') FROM pg_index
    JOIN pg_class part ON part.oid = indexrelid JOIN pg_attribute ON attrelid = indexrelid
    WHERE indrelid::regclass::text LIKE 'trajectories_step%' AND attname = 'answer_digests' AND part.relkind = 'i'
"""
READ = """
    SELECT sum(seq_tup_read) FROM pg_stat_xact_user_tables
    WHERE relname LIKE 'trajectories_step%' OR relname LIKE 'trajectories_trajectory%'
"""


def count_scanned() -> int:
    """Return how many rows this transaction has read by going through tables from end to end."""
    with connection.cursor() as cursor:
        cursor.execute(READ)
        return int(cursor.fetchone()[0])


@pytest.fixture
def steps() -> list[Step]:
    """A conversation of many calls, each with digests of its own."""
    trajectory = TrajectoryFactory.create()
    made = StepFactory.build_batch(N_STEPS, trajectory=trajectory)
    for number, step in enumerate(made):
        step.answer_digests = [f"answer-{number}", f"body-{number}"]
        step.parent_id = made[number - 1].id if number else None
    Step.objects.bulk_create(made)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE trajectories_step, trajectories_trajectory")
    return made


def test_steps_are_found_by_hundreds_of_digests_without_reading_the_table(steps: list[Step]) -> None:
    digests = [f"answer-{number}" for number in range(0, N_STEPS, 100)] + [f"nobody's-{n}" for n in range(300)]
    before = count_scanned()

    found = KnownSteps().read_ahead(digests)

    assert {step.id for step in found} == {step.id for step in steps[::100]}
    assert count_scanned() - before < N_STEPS


def test_leaves_come_first_and_are_told(steps: list[Step]) -> None:
    Step.objects.filter(pk__in=[steps[5].id, steps[-1].id]).update(answer_digests=["OK"])
    known = KnownSteps()
    before = count_scanned()

    with CaptureQueriesContext(connection) as queries:
        found = known.find(["OK"], among=Among())

    assert [(step.id, known.is_leaf(step)) for step in found] == [(steps[-1].id, True), (steps[5].id, False)]
    assert len(queries) == 2
    assert count_scanned() - before < N_STEPS


def test_no_part_of_the_index_keeps_a_list_that_every_look_up_reads(made_months: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(OPTIONS)
        parts = dict(cursor.fetchall())
    assert len(parts) > 2
    assert set(parts.values()) == {"fastupdate=off"}
