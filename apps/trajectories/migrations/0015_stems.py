"""What the calls of a conversation have in common is kept once (decision 26), cut into months like the calls."""

from datetime import timedelta

import django.db.models.deletion
from django.db import migrations, models
from django.utils import timezone

from apps.core.ids import first_id

MARGIN = timedelta(days=7)  # until whoever makes the following months has certainly run
TABLE = """
    CREATE TABLE trajectories_stem (
        id varchar(32) PRIMARY KEY, request bytea NOT NULL, chat_request bytea, prompt_token_ids bytea, response bytea
    ) PARTITION BY RANGE (id)
"""
COLUMNS = ("request", "chat_request", "prompt_token_ids", "response")


def make_table(_apps, schema_editor):
    start = (timezone.now() + MARGIN).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    until = first_id("stem", (start + timedelta(days=32)).replace(day=1))
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(TABLE)
        for name in COLUMNS:  # they come packed
            cursor.execute(f"ALTER TABLE trajectories_stem ALTER COLUMN {name} SET STORAGE EXTERNAL")
        cursor.execute(
            "CREATE TABLE trajectories_stem_start PARTITION OF trajectories_stem "
            f"FOR VALUES FROM (MINVALUE) TO ('{until}')"
        )
        cursor.execute("CREATE TABLE trajectories_stem_other PARTITION OF trajectories_stem DEFAULT")


def drop_table(_apps, schema_editor):
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("DROP TABLE trajectories_stem")


class Migration(migrations.Migration):
    dependencies = [("trajectories", "0014_completion")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(make_table, drop_table)],
            state_operations=[
                migrations.CreateModel(
                    name="Stem",
                    fields=[
                        ("id", models.CharField(editable=False, max_length=32, primary_key=True, serialize=False)),
                        ("request", models.BinaryField()),
                        ("chat_request", models.BinaryField(null=True)),
                        ("prompt_token_ids", models.BinaryField(null=True)),
                        ("response", models.BinaryField(null=True)),
                    ],
                ),
            ],
        ),
        migrations.AddField(
            model_name="exchange",
            name="stem",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="calls",
                to="trajectories.stem",
            ),
        ),
        migrations.AddIndex(
            model_name="exchange",
            index=models.Index(
                condition=models.Q(("stem", None), _negated=True), fields=["stem"], name="exchange_by_stem"
            ),
        ),
    ]
