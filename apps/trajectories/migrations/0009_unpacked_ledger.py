"""Postgres keeps the ledger's long columns as they come: packing them took 2 ms of the way to a client's last byte for
an agent's prompt of 60 KB (decision 17).
"""

from django.db import migrations

COLUMNS = ("request", "response", "chat_request", "chat_response", "prompt_token_ids")


def set_storage(storage: str) -> list[str]:
    return [f"ALTER TABLE trajectories_exchange ALTER COLUMN {name} SET STORAGE {storage}" for name in COLUMNS]


class Migration(migrations.Migration):
    dependencies = [("trajectories", "0008_breaks_and_openings")]

    operations = [migrations.RunSQL(set_storage("EXTERNAL"), set_storage("EXTENDED"))]
