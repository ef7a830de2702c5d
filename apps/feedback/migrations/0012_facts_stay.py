"""What is a fact is not deleted either: only together with a trajectory or a step that it is about."""

from django.db import migrations

FUNCTION = """
CREATE FUNCTION feedback_facts_stay() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    fact jsonb := to_jsonb(OLD);
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['trajectory_id', 'rejected_trajectory_id'] LOOP
        IF NOT EXISTS (SELECT FROM trajectories_trajectory WHERE id = fact ->> name) AND fact ->> name IS NOT NULL THEN
            RETURN NULL;
        END IF;
    END LOOP;
    FOREACH name IN ARRAY ARRAY['step_id', 'chosen_step_id', 'rejected_step_id'] LOOP
        IF NOT EXISTS (SELECT FROM trajectories_step WHERE id = fact ->> name) AND fact ->> name IS NOT NULL THEN
            RETURN NULL;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'rows of % are never deleted: add one that takes it back', TG_TABLE_NAME
        USING ERRCODE = 'integrity_constraint_violation';
END $$
"""


def facts_stay(table: str) -> migrations.RunSQL:
    """Return the operation that puts the guard on a table. It looks when the transaction ends: who removes a trajectory
    removes what was said of it first."""
    return migrations.RunSQL(
        f"CREATE CONSTRAINT TRIGGER facts_stay AFTER DELETE ON {table} DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION feedback_facts_stay()",
        f"DROP TRIGGER facts_stay ON {table}",
    )


class Migration(migrations.Migration):
    dependencies = [("feedback", "0011_searchers")]

    operations = [
        migrations.RunSQL(FUNCTION, "DROP FUNCTION feedback_facts_stay"),
        facts_stay("feedback_label"),
        facts_stay("feedback_preference"),
    ]
