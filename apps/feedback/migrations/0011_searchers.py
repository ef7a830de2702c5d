"""Queues remember who chose their search, and what was hidden from them when it was asked."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

AUTHORS = "UPDATE feedback_reviewqueue SET searcher_id = author_id"


class Migration(migrations.Migration):
    dependencies = [
        ("feedback", "0010_items_by_name"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField("reviewqueue", "left_out", models.JSONField(default=list)),
        migrations.AddField(
            "reviewqueue",
            "searcher",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.RunSQL(AUTHORS, migrations.RunSQL.noop),
    ]
