"""Exchanges and steps are cut into months (decision 19): what there is becomes the first part, without being copied.

Takes as long as Postgres needs to read both tables once and to build one key of the steps; both are locked meanwhile.
"""

from datetime import datetime, timedelta

import django.db.models.deletion
from django.db import migrations, models
from django.utils import timezone

from apps.core.ids import first_id

MARGIN = timedelta(days=7)  # until whoever makes the following months has certainly run

EXCHANGE_KEYS = """
    ALTER TABLE trajectories_exchange ADD PRIMARY KEY (id);
    CREATE INDEX exchange_by_response ON trajectories_exchange (response_id) WHERE NOT (response_id = '');
    CREATE INDEX exchange_set_aside ON trajectories_exchange (project_id, id DESC) WHERE NOT (fold_error = '');
    CREATE INDEX exchange_unfolded ON trajectories_exchange (id) WHERE folded_at IS NULL;
    CREATE INDEX generation_by_prompt ON trajectories_exchange (md5(prompt_token_ids)) WHERE dialect = 'generate'
"""
STEP_KEYS = """
    ALTER TABLE trajectories_step
        ADD PRIMARY KEY (id, trajectory_id),
        ADD CONSTRAINT step_index_is_unique UNIQUE (trajectory_id, index);
    CREATE UNIQUE INDEX step_is_submitted_once ON trajectories_step (trajectory_id, client_step_id)
        WHERE NOT (client_step_id = '');
    CREATE INDEX step_by_exchange ON trajectories_step (exchange_id);
    CREATE INDEX step_by_response ON trajectories_step (response_id) WHERE NOT (response_id = '');
    CREATE INDEX step_by_digest ON trajectories_step USING gin (answer_digests);
    CREATE INDEX step_side_call ON trajectories_step (id DESC) WHERE NOT (side_call = '');
    CREATE INDEX step_by_break ON trajectories_step (prefix_break, trajectory_id) WHERE NOT (prefix_break = '');
    CREATE INDEX step_by_parent ON trajectories_step (parent_id);
    CREATE INDEX step_by_version ON trajectories_step (version_id);
    CREATE INDEX step_by_opening ON trajectories_step (opening_id);
    ALTER TABLE trajectories_step
        ADD CONSTRAINT step_has_a_trajectory FOREIGN KEY (trajectory_id)
            REFERENCES trajectories_trajectory (id) DEFERRABLE INITIALLY DEFERRED,
        ADD CONSTRAINT step_has_a_version FOREIGN KEY (version_id)
            REFERENCES registry_version (id) DEFERRABLE INITIALLY DEFERRED,
        ADD CONSTRAINT step_has_an_opening FOREIGN KEY (opening_id)
            REFERENCES trajectories_opening (id) DEFERRABLE INITIALLY DEFERRED
"""
STEP_PARENT = """
    ALTER TABLE trajectories_step ADD CONSTRAINT step_has_a_parent FOREIGN KEY (parent_id, trajectory_id)
        REFERENCES trajectories_step (id, trajectory_id) DEFERRABLE INITIALLY DEFERRED
"""
# What each serves is served by another one: Postgres' text order is the alphabet's of ids already.
NEEDLESS_INDEXES = """
    SELECT index.relname FROM pg_index JOIN pg_class index ON index.oid = indexrelid
    WHERE indrelid = %s::regclass AND (index.relname LIKE '%%\\_like' OR index.relname LIKE '%%\\_trajectory\\_id\\_%%')
"""
INDEXES = "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s::regclass"
FOREIGN_KEYS = "SELECT conname FROM pg_constraint WHERE contype = 'f' AND conrelid = %s::regclass"


def cut_both(_apps, schema_editor):
    until = next_month(timezone.now() + MARGIN)
    with schema_editor.connection.cursor() as cursor:
        cut(cursor, "trajectories_exchange", by="id", until=first_id("exch", until), keys=EXCHANGE_KEYS)
        cut(cursor, "trajectories_step", by="trajectory_id", until=first_id("traj", until), keys=STEP_KEYS)
        cursor.execute(STEP_PARENT)


def next_month(moment: datetime) -> datetime:
    start = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (start + timedelta(days=32)).replace(day=1)


def cut(cursor, table: str, *, by: str, until: str, keys: str) -> None:
    first = f"{table}_start"
    for name in read_names(cursor, NEEDLESS_INDEXES, table):
        cursor.execute(f"DROP INDEX {name}")
    for name in read_names(cursor, FOREIGN_KEYS, table):  # the whole table's keys take their place
        cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey")
    for number, name in enumerate(read_names(cursor, INDEXES, table)):
        cursor.execute(f"ALTER INDEX {name} RENAME TO {first}_{number}")
    cursor.execute(f"ALTER TABLE {table} RENAME TO {first}")
    cursor.execute(f"CREATE TABLE {table} (LIKE {first} INCLUDING ALL EXCLUDING INDEXES) PARTITION BY RANGE ({by})")
    for statement in keys.split(";"):
        cursor.execute(statement)
    cursor.execute(f"ALTER TABLE {table} ATTACH PARTITION {first} FOR VALUES FROM (MINVALUE) TO ('{until}')")
    cursor.execute(f"CREATE TABLE {table}_other PARTITION OF {table} DEFAULT")


def read_names(cursor, query: str, table: str) -> list[str]:
    cursor.execute(query, [table])
    return [name for (name,) in cursor.fetchall()]


class Migration(migrations.Migration):
    dependencies = [("trajectories", "0011_folded_choices"), ("feedback", "0004_step_in_months")]

    operations = [
        migrations.AlterField(
            model_name="step",
            name="parent",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="children",
                to="trajectories.step",
            ),
        ),
        migrations.RunPython(cut_both),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="step",
                    name="trajectory",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="steps",
                        to="trajectories.trajectory",
                    ),
                ),
            ],
        ),
    ]
