"""The audit log: room for the longest e-mail address, and a line that was written stays as it is."""

from django.db import migrations, models

CREATE = """
CREATE FUNCTION accounts_keep_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is never changed' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER keep_audit BEFORE UPDATE ON accounts_auditevent FOR EACH ROW EXECUTE FUNCTION accounts_keep_audit();
"""
DROP = "DROP TRIGGER keep_audit ON accounts_auditevent; DROP FUNCTION accounts_keep_audit()"


class Migration(migrations.Migration):
    dependencies = [("accounts", "0004_admin_keys")]

    operations = [
        migrations.AlterField(
            model_name="auditevent", name="actor", field=models.CharField(max_length=254)
        ),
        migrations.RunSQL(CREATE, DROP),
    ]
