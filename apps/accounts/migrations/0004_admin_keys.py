from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0003_one_session_keys'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='apikey',
            name='key_scope_is_known',
        ),
        migrations.AlterField(
            model_name='apikey',
            name='scope',
            field=models.CharField(choices=[('agent', 'Agent'), ('manage', 'Manage'), ('admin', 'Admin')], default='agent', max_length=10),
        ),
        migrations.AddConstraint(
            model_name='apikey',
            constraint=models.CheckConstraint(condition=models.Q(('scope__in', ['agent', 'manage', 'admin'])), name='key_scope_is_known'),
        ),
    ]
