"""The estimator that was called "group" has the name of its paper now."""

from typing import Any

from django.db import migrations


def _rename(apps: Any, *, old: str, new: str) -> None:
    for run in apps.get_model("training", "Run").objects.filter(recipe__estimator=old):
        run.recipe["estimator"] = new
        run.save(update_fields=["recipe"])


def name_rloo(apps: Any, _schema_editor: Any) -> None:
    _rename(apps, old="group", new="rloo")


def name_group(apps: Any, _schema_editor: Any) -> None:
    _rename(apps, old="rloo", new="group")


class Migration(migrations.Migration):
    dependencies = [("training", "0002_one_active_run")]
    operations = [migrations.RunPython(name_rloo, name_group)]
