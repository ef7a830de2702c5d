from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('registry', '0003_providers_teachers_and_shares'),
    ]

    operations = [
        migrations.AddField(
            model_name='engine',
            name='max_model_len',
            field=models.PositiveIntegerField(blank=True, editable=False, null=True),
        ),
    ]
