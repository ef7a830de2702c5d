"""What a snapshot freezes of corrections, preferences and hints; and the shapes in which they are exported."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('trajectories', '0022_changed_by_jobs'),
    ]

    operations = [
        migrations.AddField(
            model_name='snapshotentry',
            name='judged',
            field=models.JSONField(null=True),
        ),
        migrations.AlterField(
            model_name='export',
            name='shape',
            field=models.CharField(choices=[('messages', 'a conversation'), ('tokens', 'a step in tokens'), ('preference', 'a preference: prompt, chosen, rejected'), ('sft', 'a correction: prompt, completion (SFT)'), ('hints', 'a hint: prompt, completion, hint')], max_length=10),
        ),
    ]
