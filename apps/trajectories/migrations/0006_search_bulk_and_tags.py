import apps.trajectories.bulk.models
import apps.trajectories.search.models
import django.contrib.postgres.indexes
import django.contrib.postgres.search
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0002_limits_and_capture'),
        ('registry', '0003_providers_teachers_and_shares'),
        ('trajectories', '0005_lineage_and_epochs'),
    ]

    operations = [
        migrations.CreateModel(
            name='BulkChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('trajectory_id', models.CharField(max_length=32)),
                ('before', models.JSONField(null=True)),
                ('error', models.TextField(blank=True)),
                ('is_undone', models.BooleanField(default=False)),
            ],
        ),
        migrations.CreateModel(
            name='BulkJob',
            fields=[
                ('id', models.CharField(default=apps.trajectories.bulk.models.new_job_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('action', models.CharField(max_length=20)),
                ('settings', models.JSONField(default=dict)),
                ('ids', models.JSONField(default=list)),
                ('query', models.CharField(blank=True, max_length=1000)),
                ('upto', models.CharField(blank=True, max_length=32)),
                ('asked_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('state', models.CharField(choices=[('queued', 'Queued'), ('running', 'Running'), ('done', 'Done'), ('undoing', 'Undoing'), ('undone', 'Undone')], default='queued', max_length=10)),
                ('cursor', models.CharField(blank=True, max_length=32)),
                ('n_total', models.PositiveIntegerField(null=True)),
                ('n_done', models.PositiveIntegerField(default=0)),
                ('n_failed', models.PositiveIntegerField(default=0)),
                ('n_undone', models.PositiveIntegerField(default=0)),
                ('touched_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('ended_at', models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='SavedView',
            fields=[
                ('id', models.CharField(default=apps.trajectories.search.models.new_view_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=60)),
                ('query', models.CharField(blank=True, max_length=1000)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('deleted_at', models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='TrajectoryTag',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=40)),
            ],
        ),
        migrations.CreateModel(
            name='TrajectoryText',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('words', django.contrib.postgres.search.SearchVectorField()),
            ],
        ),
        migrations.CreateModel(
            name='TrajectoryVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
            ],
        ),
        migrations.CreateModel(
            name='UnassignedCall',
            fields=[
                ('exchange_id', models.CharField(max_length=32, primary_key=True, serialize=False)),
                ('project_id', models.CharField(max_length=32)),
                ('noticed_at', models.DateTimeField(default=django.utils.timezone.now)),
            ],
        ),
        migrations.AddField(
            model_name='trajectory',
            name='deleted_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddIndex(
            model_name='exchange',
            index=models.Index(condition=models.Q(('fold_error', ''), _negated=True), fields=['project_id', '-id'], name='exchange_set_aside'),
        ),
        migrations.AddIndex(
            model_name='step',
            index=models.Index(condition=models.Q(('side_call', ''), _negated=True), fields=['-id'], name='step_side_call'),
        ),
        migrations.AddIndex(
            model_name='trajectory',
            index=models.Index(fields=['agent', '-id'], name='trajectory_by_agent'),
        ),
        migrations.AddIndex(
            model_name='trajectory',
            index=models.Index(fields=['project', 'channel', '-id'], name='trajectory_by_channel'),
        ),
        migrations.AddIndex(
            model_name='trajectory',
            index=models.Index(fields=['project', '-started_at'], name='trajectory_by_start'),
        ),
        migrations.AddIndex(
            model_name='trajectory',
            index=models.Index(fields=['project', 'reward'], name='trajectory_by_reward'),
        ),
        migrations.AddIndex(
            model_name='trajectory',
            index=models.Index(fields=['project', 'n_steps'], name='trajectory_by_steps'),
        ),
        migrations.AddIndex(
            model_name='trajectory',
            index=models.Index(condition=models.Q(('has_error', True)), fields=['project', '-id'], name='trajectory_with_error'),
        ),
        migrations.AddIndex(
            model_name='trajectory',
            index=models.Index(condition=models.Q(('is_excluded', True)), fields=['project', '-id'], name='trajectory_excluded'),
        ),
        migrations.AddIndex(
            model_name='trajectory',
            index=models.Index(condition=models.Q(('deleted_at', None), _negated=True), fields=['deleted_at'], name='trajectory_deleted'),
        ),
        migrations.AddField(
            model_name='bulkjob',
            name='author',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='bulkjob',
            name='key',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='accounts.apikey'),
        ),
        migrations.AddField(
            model_name='bulkjob',
            name='project',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='bulk_jobs', to='accounts.project'),
        ),
        migrations.AddField(
            model_name='bulkchange',
            name='job',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='changes', to='trajectories.bulkjob'),
        ),
        migrations.AddField(
            model_name='savedview',
            name='owner',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='savedview',
            name='project',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='saved_views', to='accounts.project'),
        ),
        migrations.AddField(
            model_name='trajectorytag',
            name='trajectory',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='tags', to='trajectories.trajectory'),
        ),
        migrations.AddField(
            model_name='trajectorytext',
            name='trajectory',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='texts', to='trajectories.trajectory'),
        ),
        migrations.AddField(
            model_name='trajectoryversion',
            name='trajectory',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='spoken_by', to='trajectories.trajectory'),
        ),
        migrations.AddField(
            model_name='trajectoryversion',
            name='version',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='registry.version'),
        ),
        migrations.AddIndex(
            model_name='unassignedcall',
            index=models.Index(fields=['project_id', '-exchange_id'], name='unassigned_by_project'),
        ),
        migrations.AddIndex(
            model_name='bulkjob',
            index=models.Index(fields=['project', '-id'], name='job_by_project'),
        ),
        migrations.AddIndex(
            model_name='bulkjob',
            index=models.Index(condition=models.Q(('state__in', ['queued', 'running', 'undoing'])), fields=['touched_at'], name='job_under_way'),
        ),
        migrations.AddIndex(
            model_name='bulkchange',
            index=models.Index(condition=models.Q(('error', ''), _negated=True), fields=['job', 'id'], name='failed_bulk_change'),
        ),
        migrations.AddConstraint(
            model_name='bulkchange',
            constraint=models.UniqueConstraint(fields=('job', 'trajectory_id'), name='job_changes_a_trajectory_once'),
        ),
        migrations.AddConstraint(
            model_name='savedview',
            constraint=models.UniqueConstraint(condition=models.Q(('deleted_at', None)), fields=('project', 'name'), name='view_name_is_used_once'),
        ),
        migrations.AddIndex(
            model_name='trajectorytag',
            index=models.Index(fields=['name', '-trajectory'], name='trajectory_by_tag'),
        ),
        migrations.AddConstraint(
            model_name='trajectorytag',
            constraint=models.UniqueConstraint(fields=('trajectory', 'name'), name='tag_is_put_once'),
        ),
        migrations.AddIndex(
            model_name='trajectorytext',
            index=django.contrib.postgres.indexes.GinIndex(fields=['words'], name='trajectory_by_words'),
        ),
        migrations.AddIndex(
            model_name='trajectoryversion',
            index=models.Index(fields=['version', '-trajectory'], name='trajectory_by_version'),
        ),
        migrations.AddConstraint(
            model_name='trajectoryversion',
            constraint=models.UniqueConstraint(fields=('trajectory', 'version'), name='version_is_noted_once'),
        ),
    ]
