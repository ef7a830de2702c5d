"""The index by which a call's place is found takes new steps at once: a list beside it would be read by every look-up."""

from django.contrib.postgres.indexes import GinIndex
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("trajectories", "0017_last_step_index")]

    operations = [
        migrations.RemoveIndex(model_name="step", name="step_by_digest"),
        migrations.AddIndex(
            model_name="step", index=GinIndex(fields=["answer_digests"], name="step_by_digest", fastupdate=False)
        ),
    ]
