"""Steps are about to be cut into months, so a key to one will have two columns (decision 19)."""

import django.db.models.deletion
from django.db import migrations, models


def step_key(*, related_name: str) -> models.ForeignKey:
    return models.ForeignKey(
        blank=True,
        db_constraint=False,
        null=True,
        on_delete=django.db.models.deletion.CASCADE,
        related_name=related_name,
        to="trajectories.step",
    )


class Migration(migrations.Migration):
    dependencies = [("feedback", "0003_facts"), ("trajectories", "0011_folded_choices")]

    operations = [
        migrations.AlterField("label", "step", step_key(related_name="labels")),
        migrations.AlterField("preference", "step", step_key(related_name="preferences")),
        migrations.AlterField("preference", "chosen_step", step_key(related_name="+")),
        migrations.AlterField("preference", "rejected_step", step_key(related_name="+")),
    ]
