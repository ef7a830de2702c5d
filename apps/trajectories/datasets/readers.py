"""Lines of a file as trajectories: which lines belong together, and what they say.

An explicit table of formats: each tells what its lines are known by, which trajectory a line is of, and how the lines
of one are read. Pure.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apps.core.contracts.arrays import pack_ids, pack_logprobs
from apps.trajectories.calls import Sampling
from apps.trajectories.datasets import line_shapes as shapes
from apps.trajectories.datasets.chat_lines import read_openai, read_sharegpt
from apps.trajectories.datasets.incoming import BadLine, Incoming, IncomingStep
from apps.trajectories.datasets.models import RowFormat, Shape
from apps.trajectories.datasets.rows import FORMATS

Line = tuple[int, dict[str, Any]]
"""The line's number, from 1, and what stands in it."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """`key` names the trajectory that a line is of; None: the line is one by itself."""

    is_mine: Callable[[Mapping[str, Any]], bool]
    key: Callable[[Mapping[str, Any]], str | None]
    read: Callable[[Sequence[Line]], Incoming]


def choose_format(row: Mapping[str, Any], wanted: str, line: int) -> str:
    """Return the format of a line. Raises BadLine when it is none, or not the one that was named."""
    if wanted != RowFormat.AUTO:
        return wanted
    for name, reader in READERS.items():
        if reader.is_mine(row):
            return name
    raise BadLine(
        line,
        "this is no known kind of line: it has neither messages nor conversations nor prompt_ids with response_ids, "
        "and no format of ours",
    )


def read_claw(lines: Sequence[Line]) -> Incoming:
    """Read the exported rows of one trajectory."""
    number, first = lines[0]
    is_tokens = first.get("format") == FORMATS[Shape.TOKENS]
    if not is_tokens and first.get("format") != FORMATS[Shape.MESSAGES]:
        raise BadLine(number, f"format: imports take {' and '.join(FORMATS.values())}")
    for line, row in lines:
        if row.get("format") != first.get("format"):
            raise BadLine(line, "format: all rows of a trajectory have one")
    return _read_token_rows(lines) if is_tokens else _read_conversations(lines)


def _read_token_rows(lines: Sequence[Line]) -> Incoming:
    rows = [(line, shapes.read_line(shapes.TokensLine, line, row)) for line, row in lines]
    _check_rows(rows)
    steps = [
        _step_of(
            line,
            row,
            prompt_ids=pack_ids(row.prompt_ids),
            completion_ids=pack_ids(row.completion_ids),
            logprobs=_pack_logprobs(line, row),
            is_exact=row.is_exact and row.logprobs is not None,
            token_check=row.token_check,
            constraints=row.constraints,
            answer=row.answer or {"role": "assistant", "content": None},
        )
        for line, row in rows
    ]
    return _head_of(rows[0], steps)


def _pack_logprobs(line: int, row: shapes.TokensLine) -> bytes | None:
    n_ids = len(row.completion_ids)
    if row.mask is not None and len(row.mask) != n_ids:
        raise BadLine(line, f"mask: {len(row.mask)} entries for {n_ids} completion ids")
    return None if row.logprobs is None else pack_logprobs(row.logprobs)


def _answer_of(row: shapes.ConversationLine, turn: shapes.TurnLine) -> dict[str, Any]:
    return row.messages[turn.at] if turn.answer is None else turn.answer


def _read_conversations(lines: Sequence[Line]) -> Incoming:
    rows = [(line, shapes.read_line(shapes.ConversationLine, line, row)) for line, row in lines]
    _check_rows(rows)
    found: list[tuple[int, shapes.ConversationLine, int]] = []
    for line, row in rows:
        ats = [turn.at for turn in row.turns]
        if ats != sorted(set(ats)) or ats[-1] != len(row.messages) - 1:
            raise BadLine(line, "turns: each `at` is the place of an answer, in order, and the last answer ends it")
        found += [(line, row, place) for place in range(len(row.turns))]
    found.sort(key=lambda item: item[1].turns[item[2]].index)
    places = {(line, place): number for number, (line, _, place) in enumerate(found)}
    steps = [
        _step_of(
            line,
            row.turns[place],
            messages=list(row.messages[: row.turns[place].at]),
            answer=_answer_of(row, row.turns[place]),
            tools=row.tools,
            follows=places.get((line, place - 1)),
        )
        for line, row, place in found
    ]
    return _head_of(rows[0], steps)


def _check_rows(rows: Sequence[tuple[int, shapes.TokensLine]] | Sequence[tuple[int, shapes.ConversationLine]]) -> None:
    line, first = rows[0]
    if len(rows) != first.n_rows:
        raise BadLine(line, f"n_rows: the trajectory {first.trajectory} has {first.n_rows} rows; here are {len(rows)}")


def _head_of(row: tuple[int, shapes.TokensLine | shapes.ConversationLine], steps: list[IncomingStep]) -> Incoming:
    line, head = row
    return Incoming(
        line=line,
        source_id=head.trajectory,
        channel=head.channel,
        group=head.group,
        title=head.title,
        metadata=head.trajectory_metadata,
        reward=head.trajectory_reward,
        is_excluded=head.trajectory_is_excluded,
        has_error=head.trajectory_has_error,
        started_at=head.trajectory_started_at,
        steps=sorted(steps, key=lambda step: step.index),
    )


def _step_of(line: int, row: shapes.StepLine, **more: Any) -> IncomingStep:
    return IncomingStep(
        line=line,
        index=row.index,
        reward=row.reward,
        version=row.version or "",
        finish_reason=row.finish_reason,
        status=row.status.value,
        side_call=row.side_call.value,
        is_excluded=row.is_excluded,
        client_step_id=row.client_step_id,
        metadata=row.metadata,
        sampling=Sampling(temperature=row.temperature, top_p=row.top_p, top_k=row.top_k),
        started_at=row.started_at,
        ended_at=row.ended_at,
        **more,
    )


def read_claw_r1(lines: Sequence[Line]) -> Incoming:
    """Read the steps of one trajectory of Claw-R1. Its version numbers are not ours: they are kept as metadata."""
    rows = [(line, shapes.read_line(shapes.ClawR1Line, line, row)) for line, row in lines]
    rows.sort(key=lambda item: item[1].step_index if item[1].step_index is not None else item[0])
    line, first = rows[0]
    ends = [row.is_last for _, row in rows]
    if any(end is not None for end in ends) and not ends[-1]:
        raise BadLine(line, f"is_last: the trajectory {first.trajectory_uid} is unfinished: its last step is not in it")
    steps = [_read_claw_r1_step(line, row, index=place) for place, (line, row) in enumerate(rows)]
    _check_claw_r1_order(rows)
    return Incoming(
        line=line,
        source_id=str(first.trajectory_uid),
        group="" if first.prompt_uid is None else str(first.prompt_uid),
        steps=steps,
    )


def _check_claw_r1_order(rows: Sequence[tuple[int, shapes.ClawR1Line]]) -> None:
    """Raise BadLine where a step is missing, or is there twice; where no line has an index, their order is theirs."""
    if all(row.step_index is None for _, row in rows):
        return
    for place, (line, row) in enumerate(rows):
        if row.step_index is None:
            raise BadLine(line, f"step_index: other steps of the trajectory {row.trajectory_uid} have one")
        if row.step_index < place:
            raise BadLine(line, f"step_index: the trajectory {row.trajectory_uid} has two steps {row.step_index}")
        if row.step_index > place:
            missing = f"the trajectory {row.trajectory_uid} has no step {place}; this is step {row.step_index}"
            raise BadLine(line, f"step_index: {missing}")


def _read_claw_r1_step(line: int, row: shapes.ClawR1Line, *, index: int) -> IncomingStep:
    logprobs = row.rollout_log_probs
    if logprobs is not None and len(logprobs) != len(row.response_ids):
        n_ids = len(row.response_ids)
        raise BadLine(
            line, f"rollout_log_probs: {len(logprobs)} log-probs for {n_ids} response ids: each needs its own"
        )
    if row.multi_modal_data:
        raise BadLine(line, "multi_modal_data: steps with pictures cannot be imported")
    own = {"policy_version": row.policy_version} if row.policy_version is not None else {}
    return IncomingStep(
        line=line,
        index=index,
        prompt_ids=pack_ids(row.prompt_ids),
        completion_ids=pack_ids(row.response_ids),
        logprobs=None if logprobs is None else pack_logprobs(logprobs),
        is_exact=logprobs is not None,
        answer={"role": "assistant", "content": None},
        reward=row.reward,
        metadata={**(row.metadata or {}), **own},
    )


def _key_of_claw_r1(row: Mapping[str, Any]) -> str:
    return json.dumps(row.get("trajectory_uid"))


READERS: Mapping[str, Reader] = {
    RowFormat.CLAW: Reader(
        is_mine=lambda row: str(row.get("format", "")).startswith("claw."),
        key=lambda row: str(row.get("trajectory")),
        read=read_claw,
    ),
    RowFormat.CLAW_R1: Reader(
        is_mine=lambda row: "prompt_ids" in row and "response_ids" in row, key=_key_of_claw_r1, read=read_claw_r1
    ),
    RowFormat.SHAREGPT: Reader(is_mine=lambda row: "conversations" in row, key=lambda _row: None, read=read_sharegpt),
    RowFormat.OPENAI: Reader(is_mine=lambda row: "messages" in row, key=lambda _row: None, read=read_openai),
}
