"""Relations of a queue's items get names, by which the room below asks who reviews what. Nothing changes in Postgres."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("feedback", "0009_daily_calls")]

    operations = [
        migrations.AlterField(
            "queueitem",
            "trajectory",
            models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="queue_items", to="trajectories.trajectory"
            ),
        ),
        migrations.AlterField(
            "queueitem",
            "other",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="queue_pairs",
                to="trajectories.trajectory",
            ),
        ),
    ]
