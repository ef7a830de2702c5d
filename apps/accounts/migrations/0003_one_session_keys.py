from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0002_limits_and_capture'),
    ]

    operations = [
        migrations.AddField(
            model_name='apikey',
            name='is_one_session',
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
