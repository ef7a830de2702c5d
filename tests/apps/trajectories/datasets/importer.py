"""Imports in one breath: a file's lines in, the job done, the row back."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from apps.accounts.access import Caller
from apps.accounts.models import Agent
from apps.feedback.importing import reward_imported
from apps.trajectories.datasets import import_job
from apps.trajectories.datasets.importing import ImportSettings, start_import
from apps.trajectories.datasets.models import Dataset, Import

ImportRows = Callable[..., Import]


def as_lines(rows: Sequence[Any]) -> bytes:
    """Return rows as lines of JSON; bytes stand for a line as it is."""
    return b"".join(row + b"\n" if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)


def import_file(
    content: bytes,
    *,
    agent: Agent,
    caller: Caller,
    dataset: Dataset | None = None,
    slice_s: float = 60,
    **settings: Any,
) -> Import:
    """Import a file and return what came of it."""
    source = start_import(
        agent=agent,
        caller=caller,
        chunks=[content],
        file_name="rows.jsonl",
        n_bytes=len(content),
        settings=ImportSettings(**settings),
        dataset=dataset,
    )
    import_job.run_import(source.pk, reward=reward_imported, slice_s=slice_s)
    source.refresh_from_db()
    return source


def problems_of(source: Import) -> list[tuple[int, str]]:
    """Return (line, reason) of what was refused."""
    return list(source.problems.order_by("line").values_list("line", "reason"))
