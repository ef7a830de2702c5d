"""Finds the opening that a conversation begins with, and lets later ones share it. Writes openings and no steps.

What is stored of a prompt for all to share is only what a second conversation began with as well: the words of one
conversation's user never outlive it here.
"""

from collections.abc import Callable
from itertools import takewhile

from django.db import connection

from apps.core.contracts.arrays import ID_BYTES
from apps.trajectories.calls import Call
from apps.trajectories.least_used import LeastUsed
from apps.trajectories.messages import hash_text, is_system, spell
from apps.trajectories.models import Opening
from apps.trajectories.trie import Context, split_tokens

LEAST_BYTES = 1024  # less is not worth a row
MAX_BYTES = 32 * 1024 * 1024  # kept in memory

Name = tuple[str, str]
"""Project and digest."""

Load = Callable[[str], Context]
"""Returns a step's context."""

# Openings that change no more, as the database has them; never one that a transaction may still take back.
_settled = LeastUsed[Name, Opening](max_bytes=MAX_BYTES)


class Openings:
    """The openings that one transaction meets."""

    def __init__(self) -> None:
        self._known: dict[Name, Opening] = {}

    def find(self, call: Call, *, prompt: bytes, project_id: str, load: Load) -> Opening | None:
        """Return the opening of a conversation's first call, made when it is new; None when it is too short for one."""
        system = f"[{','.join(map(spell, takewhile(is_system, call.messages)))}]"
        if len(system) + len(call.tools_json) < LEAST_BYTES:
            return None
        # Calls without tokens have openings of their own: they could never say what prompts have in common.
        name = (project_id, hash_text(system, call.tools_digest, "tokens" if prompt else ""))
        opening = self._known.get(name) or _settled.find(name) or self._read(name, system, has_tokens=bool(prompt))
        if prompt and not opening.token_ids:
            opening = _settle(opening, prompt, load=load)
        self._known[name] = opening
        return opening

    def take_example(self, opening: Opening, step_id: str) -> None:
        """Say which step the next conversation's prompt is to be compared to, where that is not settled yet."""
        if not opening.token_ids and opening.example_id != step_id:
            opening.example_id = step_id
            Opening.objects.filter(pk=opening.pk, token_ids=b"").update(example_id=step_id)

    def _read(self, name: Name, system: str, *, has_tokens: bool) -> Opening:
        project_id, digest = name
        rows = Opening.objects.filter(project_id=project_id, digest=digest)
        opening = rows.first()
        if opening is None:
            _wait_for_disk()
            made = Opening(project_id=project_id, digest=digest, messages=system.encode())
            Opening.objects.bulk_create([made], ignore_conflicts=True)
            return rows.get()
        if opening.token_ids or not has_tokens:
            _settled.keep(name, opening, n_bytes=len(opening.messages) + len(opening.token_ids))
        return opening


def _settle(opening: Opening, prompt: bytes, *, load: Load) -> Opening:
    """Store what this prompt and the first one have in common, if that is something."""
    locked = Opening.objects.select_for_update(no_key=True).get(pk=opening.pk)
    if locked.token_ids or not locked.example_id:
        return locked
    shared, _ = split_tokens(load(locked.example_id).token_ids, prompt)
    if shared * ID_BYTES >= LEAST_BYTES:
        _wait_for_disk()
        locked.token_ids = prompt[: shared * ID_BYTES]
        locked.save(update_fields=["token_ids"])
    return locked


def _wait_for_disk() -> None:
    """Have this transaction's commit wait for the disk, whatever the recorder wanted: who reads an opening keeps it."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit TO on")
