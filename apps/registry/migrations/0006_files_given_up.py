from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('registry', '0005_whole_models'),
    ]

    operations = [
        migrations.AddField(
            model_name='version',
            name='given_up_at',
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
    ]
