"""How many calls each grader makes on a day, counted before they are made."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("feedback", "0008_thumb_tokens")]

    operations = [
        migrations.CreateModel(
            name="DailyCalls",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("day", models.DateField()),
                ("n_calls", models.PositiveIntegerField(default=0)),
                (
                    "grader",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="daily_calls",
                        to="feedback.grader",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("grader", "day"), name="grader_counts_a_day_once"),
                ],
            },
        ),
    ]
