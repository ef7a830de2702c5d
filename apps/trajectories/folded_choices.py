"""The ledger's note of which choices of a call are steps. A constraint refuses to note one twice (`IntegrityError` with
the name `FOLDED_ONCE`), so whoever makes steps of calls notes it here, in the same transaction.
"""

from collections.abc import Mapping, Sequence

from django.db import IntegrityError

from apps.trajectories.copying import run_statement

FOLDED_ONCE = "exchange_is_folded_once"

_NOTE = """
    UPDATE trajectories_exchange call SET {changes} folded_choices = call.folded_choices || new.choices::smallint[]
    FROM unnest(%b::text[], %b::text[]) AS new (id, choices)
    WHERE call.id = new.id AND call.id = ANY(%b)
"""  # The list, too, is for the planner: it then looks into the months that are meant, and uses the key.
_MARK_FOLDED = _NOTE.format(changes="folded_at = clock_timestamp(), fold_error = '',")
_NOTE_CHOICES = _NOTE.format(changes="")


def mark_folded(choices: Mapping[str, Sequence[int]]) -> None:
    """Take calls out of the recorder's queue; each with its choices that are steps by this."""
    _note(_MARK_FOLDED, choices)


def note_choices(choices: Mapping[str, Sequence[int]]) -> None:
    """Note choices that are steps by another way than the recorder's."""
    _note(_NOTE_CHOICES, choices)


def is_folded_twice(error: BaseException) -> bool:
    """Say whether this is what the constraint refused."""
    diagnosis = getattr(error.__cause__, "diag", None)
    return isinstance(error, IntegrityError) and getattr(diagnosis, "constraint_name", None) == FOLDED_ONCE


def _note(statement: str, choices: Mapping[str, Sequence[int]]) -> None:
    if not choices:
        return
    ids = list(choices)
    arrays = ["{" + ",".join(map(str, choices[name])) + "}" for name in ids]
    run_statement(statement, [ids, arrays, ids])
