"""How often a job was claimed without getting on; snapshots cannot be emptied either; groups and sessions are found by
their names."""

from django.db import migrations, models

from apps.trajectories.datasets.sql import CREATE_EMPTYING_TRIGGERS, DROP_EMPTYING_TRIGGERS


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0005_audit"),
        ("trajectories", "0019_hidden_from_exports"),
    ]

    operations = [
        migrations.AddField(
            model_name="export",
            name="n_tries",
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="import",
            name="n_tries",
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
        migrations.RunSQL(CREATE_EMPTYING_TRIGGERS, DROP_EMPTYING_TRIGGERS),
        migrations.AddIndex(
            model_name="trajectory",
            index=models.Index(
                condition=models.Q(("group", ""), _negated=True),
                fields=["project", "group", "-id"],
                name="trajectory_by_group",
            ),
        ),
        migrations.AddIndex(
            model_name="trajectory",
            index=models.Index(
                condition=models.Q(("session_key", ""), _negated=True),
                fields=["project", "session_key", "-id"],
                name="trajectory_by_session",
            ),
        ),
    ]
