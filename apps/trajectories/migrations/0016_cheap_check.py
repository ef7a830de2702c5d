"""That a call's choices are noted once is checked for each call that is written, on the way to its client's last byte:
in PL/pgSQL, which is compiled once a connection. Postgres prepares a check in SQL anew for each statement, which took it
as long as all else about a row.
"""

from django.db import migrations

FAST = """
    CREATE OR REPLACE FUNCTION trajectories_all_different(smallint[]) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
    BEGIN
        IF cardinality($1) < 2 THEN
            RETURN true;
        END IF;
        RETURN (SELECT count(*) = count(DISTINCT value) FROM unnest($1) value);
    END
    $$
"""
SLOW = """
    CREATE OR REPLACE FUNCTION trajectories_all_different(smallint[]) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (SELECT count(*) = count(DISTINCT value) FROM unnest($1) value)
"""


class Migration(migrations.Migration):
    dependencies = [("trajectories", "0015_stems")]

    operations = [migrations.RunSQL(FAST, SLOW)]
