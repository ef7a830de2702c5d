"""A label's step is a step of the label's trajectory; so are a preference's step and the one that was chosen. What was
rejected may be of another trajectory that the row does not name: Django alone looks after that.
"""

from django.db import migrations

KEYS = {
    "label_has_a_step": ("feedback_label", "step_id"),
    "preference_has_a_step": ("feedback_preference", "step_id"),
    "preference_has_a_chosen_step": ("feedback_preference", "chosen_step_id"),
}


def add_key(name: str, table: str, column: str) -> migrations.RunSQL:
    return migrations.RunSQL(
        f"ALTER TABLE {table} ADD CONSTRAINT {name} FOREIGN KEY ({column}, trajectory_id) "
        "REFERENCES trajectories_step (id, trajectory_id) DEFERRABLE INITIALLY DEFERRED",
        f"ALTER TABLE {table} DROP CONSTRAINT {name}",
    )


class Migration(migrations.Migration):
    dependencies = [("feedback", "0004_step_in_months"), ("trajectories", "0012_months")]

    operations = [add_key(name, table, column) for name, (table, column) in KEYS.items()]
