import apps.trajectories.datasets.models
import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

from apps.trajectories.datasets.sql import CREATE_TRIGGERS, DROP_TRIGGERS


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0002_limits_and_capture'),
        ('trajectories', '0006_search_bulk_and_tags'),
    ]

    operations = [
        migrations.CreateModel(
            name='Dataset',
            fields=[
                ('id', models.CharField(default=apps.trajectories.datasets.models.new_dataset_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=100)),
                ('description', models.TextField(blank=True)),
                ('created_by', models.CharField(max_length=254)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('n_trajectories', models.PositiveIntegerField(default=0)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='datasets', to='accounts.project')),
            ],
            options={
                'indexes': [models.Index(fields=['project', '-id'], name='dataset_by_project')],
                'constraints': [models.UniqueConstraint(fields=('project', 'name'), name='dataset_name_is_unique_in_project')],
            },
        ),
        migrations.CreateModel(
            name='DatasetMember',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('added_how', models.CharField(choices=[('hand', 'Hand'), ('search', 'Search'), ('bulk', 'Bulk'), ('import', 'Import')], max_length=10)),
                ('query', models.TextField(blank=True)),
                ('added_by', models.CharField(max_length=254)),
                ('added_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('dataset', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='members', to='trajectories.dataset')),
                ('trajectory', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='trajectories.trajectory')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('dataset', 'trajectory'), name='dataset_has_a_trajectory_once')],
            },
        ),
        migrations.CreateModel(
            name='Snapshot',
            fields=[
                ('id', models.CharField(default=apps.trajectories.datasets.models.new_snapshot_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('number', models.PositiveIntegerField()),
                ('note', models.CharField(blank=True, max_length=200)),
                ('queries', models.JSONField(default=list)),
                ('created_by', models.CharField(max_length=254)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('n_trajectories', models.PositiveIntegerField(default=0)),
                ('n_rewarded', models.PositiveIntegerField(default=0)),
                ('n_steps', models.PositiveBigIntegerField(default=0)),
                ('n_prompt_tokens', models.PositiveBigIntegerField(default=0)),
                ('n_completion_tokens', models.PositiveBigIntegerField(default=0)),
                ('mean_reward', models.FloatField(null=True)),
                ('checksum', models.CharField(blank=True, max_length=64)),
                ('dataset', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='snapshots', to='trajectories.dataset')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('dataset', 'number'), name='snapshot_number_is_unique')],
            },
        ),
        migrations.CreateModel(
            name='SnapshotEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('trajectory_id', models.CharField(max_length=32)),
                ('reward', models.FloatField(null=True)),
                ('step_rewards', models.JSONField(default=dict)),
                ('n_steps', models.PositiveIntegerField()),
                ('end_index', models.PositiveIntegerField()),
                ('n_prompt_tokens', models.PositiveBigIntegerField()),
                ('n_completion_tokens', models.PositiveBigIntegerField()),
                ('content', models.CharField(max_length=64)),
                ('snapshot', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='entries', to='trajectories.snapshot')),
            ],
            options={
                'verbose_name_plural': 'snapshot entries',
                'constraints': [models.UniqueConstraint(fields=('snapshot', 'trajectory_id'), name='snapshot_has_a_trajectory_once')],
            },
        ),
        migrations.CreateModel(
            name='Import',
            fields=[
                ('state', models.CharField(choices=[('queued', 'Queued'), ('running', 'Running'), ('done', 'Done'), ('failed', 'Failed'), ('cancelled', 'Cancelled'), ('expired', 'Expired')], default='queued', max_length=10)),
                ('error', models.TextField(blank=True)),
                ('created_by', models.CharField(max_length=254)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('sent_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('claim', models.CharField(blank=True, max_length=32)),
                ('beat_at', models.DateTimeField(null=True)),
                ('started_at', models.DateTimeField(null=True)),
                ('ended_at', models.DateTimeField(null=True)),
                ('id', models.CharField(default=apps.trajectories.datasets.models.new_import_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('row_format', models.CharField(choices=[('auto', 'Auto'), ('claw', 'Claw'), ('openai', 'Openai'), ('sharegpt', 'Sharegpt'), ('claw_r1', 'Claw R1')], default='auto', max_length=10)),
                ('channel', models.CharField(blank=True, max_length=10)),
                ('is_all_or_none', models.BooleanField(default=False)),
                ('is_again', models.BooleanField(default=False)),
                ('file_name', models.CharField(max_length=200)),
                ('n_bytes', models.PositiveBigIntegerField()),
                ('n_total', models.PositiveIntegerField(default=0)),
                ('n_lines', models.PositiveIntegerField(default=0)),
                ('n_imported', models.PositiveIntegerField(default=0)),
                ('n_known', models.PositiveIntegerField(default=0)),
                ('n_refused', models.PositiveIntegerField(default=0)),
                ('cursor', models.PositiveIntegerField(null=True)),
                ('is_checked', models.BooleanField(default=False)),
                ('agent', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='imports', to='accounts.agent')),
                ('dataset', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='imports', to='trajectories.dataset')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='imports', to='accounts.project')),
            ],
        ),
        migrations.CreateModel(
            name='ImportedTrajectory',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=64)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('source', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='trajectories', to='trajectories.import')),
                ('trajectory', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='trajectories.trajectory')),
            ],
            options={
                'verbose_name_plural': 'imported trajectories',
            },
        ),
        migrations.CreateModel(
            name='ImportProblem',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('line', models.PositiveIntegerField()),
                ('reason', models.TextField()),
                ('source', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='problems', to='trajectories.import')),
            ],
        ),
        migrations.CreateModel(
            name='Export',
            fields=[
                ('state', models.CharField(choices=[('queued', 'Queued'), ('running', 'Running'), ('done', 'Done'), ('failed', 'Failed'), ('cancelled', 'Cancelled'), ('expired', 'Expired')], default='queued', max_length=10)),
                ('error', models.TextField(blank=True)),
                ('created_by', models.CharField(max_length=254)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('sent_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('claim', models.CharField(blank=True, max_length=32)),
                ('beat_at', models.DateTimeField(null=True)),
                ('started_at', models.DateTimeField(null=True)),
                ('ended_at', models.DateTimeField(null=True)),
                ('id', models.CharField(default=apps.trajectories.datasets.models.new_export_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('query', models.TextField(blank=True)),
                ('last_id', models.CharField(blank=True, max_length=32)),
                ('shape', models.CharField(choices=[('messages', 'Messages'), ('tokens', 'Tokens')], max_length=10)),
                ('file_format', models.CharField(choices=[('jsonl', 'Jsonl'), ('parquet', 'Parquet')], max_length=10)),
                ('n_total', models.PositiveIntegerField()),
                ('n_done', models.PositiveIntegerField(default=0)),
                ('n_gone', models.PositiveIntegerField(default=0)),
                ('n_rows', models.PositiveBigIntegerField(default=0)),
                ('n_left_out', models.PositiveBigIntegerField(default=0)),
                ('n_bytes', models.PositiveBigIntegerField(default=0)),
                ('n_parts', models.PositiveIntegerField(default=0)),
                ('cursor', models.CharField(blank=True, max_length=32)),
                ('expires_at', models.DateTimeField(null=True)),
                ('dataset', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='exports', to='trajectories.dataset')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='exports', to='accounts.project')),
                ('snapshot', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='exports', to='trajectories.snapshot')),
            ],
            options={
                'indexes': [models.Index(fields=['project', '-id'], name='export_by_project'), models.Index(condition=models.Q(('state', 'expired'), _negated=True), fields=['state'], name='export_to_tend')],
                'constraints': [models.CheckConstraint(condition=models.Q(('snapshot', None), models.Q(('dataset', None), ('query', '')), _connector='OR'), name='export_has_one_source')],
            },
        ),
        migrations.AddIndex(
            model_name='import',
            index=models.Index(fields=['project', '-id'], name='import_by_project'),
        ),
        migrations.AddIndex(
            model_name='importedtrajectory',
            index=models.Index(fields=['project', 'digest'], name='imported_by_digest'),
        ),
        migrations.AddConstraint(
            model_name='importedtrajectory',
            constraint=models.UniqueConstraint(fields=('source', 'digest'), name='content_is_imported_once'),
        ),
        migrations.AddIndex(
            model_name='importproblem',
            index=models.Index(fields=['source', 'line'], name='problem_by_line'),
        ),
        migrations.RunSQL(CREATE_TRIGGERS, DROP_TRIGGERS),
    ]
