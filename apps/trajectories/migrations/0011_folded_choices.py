"""The ledger says which choices of a call are steps, and a constraint there makes folding twice impossible: a unique
key of the steps would need the column by which that table is about to be cut (decision 19).
"""

import django.contrib.postgres.fields
from django.db import migrations, models
from django.db.models import Value

import apps.trajectories.models

CREATE_FUNCTION = """
    CREATE FUNCTION trajectories_all_different(smallint[]) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (SELECT count(*) = count(DISTINCT value) FROM unnest($1) value)
"""
NOTE_FOLDED = """
    UPDATE trajectories_exchange exchange SET folded_choices = step.choices
    FROM (SELECT exchange_id, array_agg(choice) AS choices FROM trajectories_step GROUP BY exchange_id) step
    WHERE step.exchange_id = exchange.id
"""


class Migration(migrations.Migration):
    dependencies = [("trajectories", "0010_constraints")]

    operations = [
        migrations.RunSQL(CREATE_FUNCTION, "DROP FUNCTION trajectories_all_different"),
        migrations.AddField(
            model_name="exchange",
            name="folded_choices",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.SmallIntegerField(), default=list, db_default=Value("{}"), size=None
            ),
        ),
        migrations.RunSQL(NOTE_FOLDED, migrations.RunSQL.noop),
        migrations.RemoveConstraint(model_name="step", name="exchange_is_folded_once"),
        migrations.AddIndex(
            model_name="step", index=models.Index(fields=["exchange_id"], name="step_by_exchange")
        ),
        migrations.AddConstraint(
            model_name="exchange",
            constraint=models.CheckConstraint(
                condition=apps.trajectories.models.AllDifferent("folded_choices"), name="exchange_is_folded_once"
            ),
        ),
    ]
