"""Who made an export, and how many trajectories were left out of it since they reviewed them blind."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("trajectories", "0018_digests_at_once"),
    ]

    operations = [
        migrations.AddField(
            model_name="export",
            name="author",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="export",
            name="n_hidden",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
    ]
