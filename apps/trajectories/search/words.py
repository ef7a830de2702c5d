"""Keeps what was said in steps where search finds it. Called by whoever writes steps, in the same transaction.

System texts are left out: they are the same in all of an agent's trajectories, so a word of theirs would find all.
Knows nothing of the search language.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from apps.trajectories.copying import run_statement
from apps.trajectories.messages import clean_text, role_of
from apps.trajectories.models import Step
from apps.trajectories.search.models import TrajectoryVersion

CONFIG = "simple"  # words as they stand: no stemming, no stop words, any language that has spaces
PIECE = 60_000  # characters a row: Postgres refuses a vector above 1 MiB, whatever the words are


_KEEP = f"""
    INSERT INTO trajectories_trajectorytext (trajectory_id, words)
    SELECT id, to_tsvector('{CONFIG}', piece) FROM unnest(%b::text[], %b::text[]) new (id, piece)
"""  # noqa: S608 (our own words)


def keep_words(steps: Sequence[Step]) -> None:
    """Make new steps' messages and answers searchable, and note which versions spoke.

    A phrase is found within what is kept at once.
    """
    ids, pieces = list[str](), list[str]()
    by_trajectory = sorted(steps, key=lambda step: step.trajectory_id)
    for trajectory_id, group in groupby(by_trajectory, key=lambda step: step.trajectory_id):
        text = clean_text("\n".join(_read_texts(group)))
        pieces += (text[start : start + PIECE] for start in range(0, len(text), PIECE))
        ids += [trajectory_id] * (len(pieces) - len(ids))
    run_statement(_KEEP, [ids, pieces])
    spoken = {(step.trajectory_id, step.version_id) for step in steps if step.version_id}
    TrajectoryVersion.objects.bulk_create(
        [TrajectoryVersion(trajectory_id=trajectory, version_id=version) for trajectory, version in sorted(spoken)],
        ignore_conflicts=True,
    )


def _read_texts(steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        for message in json.loads(bytes(step.tail_messages)):
            if role_of(message) != "system":
                yield from _texts_of(message)
        yield from _texts_of(json.loads(bytes(step.answer)))


def _texts_of(message: Any) -> Iterator[str]:
    """Yield what a message says: texts, reasoning, names and arguments of tool calls. Pictures say nothing."""
    if not isinstance(message, dict):
        return
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text
    yield from (message[name] for name in ("reasoning_content", "reasoning") if isinstance(message.get(name), str))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield from (value for value in (function.get("name"), function.get("arguments")) if isinstance(value, str))
