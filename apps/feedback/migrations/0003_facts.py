"""What is a fact is not changed: the database itself refuses it, whoever asks."""

from django.db import migrations

FUNCTION = """
CREATE FUNCTION feedback_keep_facts() RETURNS trigger LANGUAGE plpgsql AS $$
-- The first argument names columns that may be forgotten (set to NULL), the second columns that may be set once.
DECLARE
    was jsonb := to_jsonb(OLD);
    now jsonb := to_jsonb(NEW);
    name text;
BEGIN
    FOREACH name IN ARRAY string_to_array(TG_ARGV[0], ',') LOOP
        IF now -> name = 'null'::jsonb THEN
            was := was - name;
            now := now - name;
        END IF;
    END LOOP;
    FOREACH name IN ARRAY string_to_array(TG_ARGV[1], ',') LOOP
        IF was -> name = 'null'::jsonb THEN
            was := was - name;
            now := now - name;
        END IF;
    END LOOP;
    IF was IS DISTINCT FROM now THEN
        RAISE EXCEPTION 'rows of % are never changed: add one that supersedes it', TG_TABLE_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$
"""


def keep_facts(table: str, *, forgets: str = "", once: str = "") -> migrations.RunSQL:
    """Return the operation that puts the guard on a table."""
    return migrations.RunSQL(
        f"CREATE TRIGGER keep_facts BEFORE UPDATE ON {table} FOR EACH ROW "
        f"EXECUTE FUNCTION feedback_keep_facts('{forgets}', '{once}')",
        f"DROP TRIGGER keep_facts ON {table}",
    )


class Migration(migrations.Migration):
    dependencies = [("feedback", "0002_labels_schemas_preferences")]

    operations = [
        migrations.RunSQL(FUNCTION, "DROP FUNCTION feedback_keep_facts"),
        keep_facts("feedback_label", forgets="author_id,key_id", once="superseded_by_id"),
        keep_facts("feedback_preference", forgets="author_id,key_id", once="superseded_by_id"),
        keep_facts("feedback_scoreschema", forgets="author_id,key_id"),
    ]
