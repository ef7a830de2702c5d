"""Turns exchanges into steps of trajectories. Knows neither the loop nor the locks around it (`recorder.py`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from apps.core.contracts.arrays import ID_BYTES
from apps.trajectories import sessions
from apps.trajectories.calls import Answer, Call, UnreadableExchange
from apps.trajectories.copying import make_row
from apps.trajectories.messages import is_system, spell
from apps.trajectories.models import Exchange, Opening, PrefixBreak, Step, Trajectory
from apps.trajectories.placing import Caller, Place, find_place, read_ahead, start_trajectory
from apps.trajectories.prefix_breaks import Joint, classify_break
from apps.trajectories.shared_rows import SharedRows
from apps.trajectories.trie import Context, split_prompt, split_spelled


@dataclass(frozen=True, kw_only=True)
class FoldedCall:
    """What became of an exchange: its trajectory, and the choices of its answer that are steps of it now.

    There is no trajectory for a call that failed before any session, and for one in tokens that names none: its maker
    submits it (`submitting.py`).
    """

    trajectory: Trajectory | None = None
    choices: tuple[int, ...] = ()


def fold_calls(calls: Sequence[Call]) -> list[FoldedCall]:
    """Add the calls' steps to their trajectories, in order.

    A call that got no answer makes no step; its trajectory, if it has one, is marked. A call that ended after its
    trajectory was complete is kept there, out of training. Raises UnreadableExchange when one has no place at all.
    """
    shared = SharedRows()
    shared.read_callers([call.exchange for call in calls])
    called = [(call, _find_caller(call.exchange, shared=shared)) for call in calls]
    read_ahead(called, shared=shared)
    folded = [_fold_call(call, caller, shared=shared) for call, caller in called]
    shared.write()
    return folded


def _find_caller(exchange: Exchange, *, shared: SharedRows) -> Caller:
    agent = shared.find_agent(exchange)
    if agent is None:
        raise UnreadableExchange(f"its agent {exchange.agent_id} or project {exchange.project_id} no longer exists")
    return Caller(agent=agent, key=shared.find_key(exchange))


def _fold_call(call: Call, caller: Caller, *, shared: SharedRows) -> FoldedCall:
    exchange = call.exchange
    if call.is_in_tokens and not (exchange.trajectory_id or exchange.session_key):
        return FoldedCall()
    place = find_place(call, caller, shared=shared)
    if place.trajectory is None and not call.answers and not place.session_key:
        return FoldedCall()
    trajectory = place.trajectory or start_trajectory(call, place, caller, shared=shared)
    steps = _make_steps(call, place, project_id=trajectory.project_id, shared=shared)
    if steps:
        shared.keep_tools(project_id=trajectory.project_id, digest=call.tools_digest, tools_json=call.tools_json)
        shared.add_steps(trajectory, steps)
    shared.count_in(trajectory, exchange, messages=call.messages, steps=steps)
    if place.replaces:
        shared.exclude_step(place.replaces)
    return FoldedCall(trajectory=trajectory, choices=tuple(step.choice for step in steps))


def _make_steps(call: Call, place: Place, *, project_id: str, shared: SharedRows) -> list[Step]:
    """Return one step for each choice; the choices of a call are siblings."""
    if not call.answers:
        return []
    prompt = _read_prompt(call.exchange)
    opening: Opening | None = None
    if place.parent_id:
        context = shared.find_context(place.parent_id)
    else:
        opening = shared.openings.find(call, prompt=prompt, project_id=project_id, load=shared.find_context)
        context = _begin_with(opening, call)
    shape = _share(call, prompt, context)
    steps = [_make_step(call, answer, place=place, shape=shape) for answer in call.answers]
    for step, answer in zip(steps, call.answers, strict=True):
        step.opening_id = opening.pk if opening else None
        step.version_id = shared.find_version_id(call.exchange.version_id)
        step.prefix_break = _find_break(call, shape, context) if place.parent_id else PrefixBreak.NONE
        own, n_bytes = _own_context(call, answer, shape, context)
        shared.contexts.keep(step.id, own, n_bytes=n_bytes)
    if opening is not None and prompt:
        shared.openings.take_example(opening, steps[0].id)
    return steps


def _begin_with(opening: Opening | None, call: Call) -> Context:
    """Return what the opening gives: its messages are the call's own by their hash, and need not be parsed."""
    if opening is None:
        return Context()
    return Context(prompt=bytes(opening.token_ids), messages=tuple(takewhile(is_system, call.messages)))


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """A call's prompt (int32) and messages, and what of them its steps share with their parent."""

    prompt: bytes
    spelled: tuple[str, ...]
    shared_tokens: int
    tail_token_ids: bytes
    shared_messages: int
    tail_messages: bytes


def _share(call: Call, prompt: bytes, context: Context) -> _Shape:
    spelled = tuple(map(spell, call.messages))
    shared_tokens, tail_token_ids = split_prompt(context, prompt)
    shared_messages, tail_messages = split_spelled(context.spelled, spelled)
    return _Shape(
        prompt=prompt,
        spelled=spelled,
        shared_tokens=shared_tokens,
        tail_token_ids=tail_token_ids,
        shared_messages=shared_messages,
        tail_messages=tail_messages,
    )


def _find_break(call: Call, shape: _Shape, parent: Context) -> PrefixBreak:
    """Return why the prompt does not go on where the parent ended."""
    if not shape.prompt:
        return PrefixBreak.NONE
    epoch = call.marks.epoch
    return classify_break(
        Joint(
            n_shared=shape.shared_tokens,
            n_parent_prompt=parent.n_prompt_tokens,
            n_parent=parent.n_tokens,
            n_parent_messages=len(parent.messages),
            parent_messages=parent.messages[shape.shared_messages :],
            messages=call.messages[shape.shared_messages :],
            has_same_tools=parent.tools_digest == call.tools_digest,
            has_new_epoch=epoch is not None and parent.epoch is not None and epoch > parent.epoch,
        )
    )


def _own_context(call: Call, answer: Answer, shape: _Shape, parent: Context) -> tuple[Context, int]:
    """Return what the step's children may share, and about how many bytes it takes beside its parent's."""
    n_shared = shape.shared_messages
    context = Context(
        prompt=shape.prompt,
        completion=answer.token_ids,
        messages=(*parent.messages[:n_shared], *call.messages[n_shared:], answer.message),
        tools_digest=call.tools_digest,
        epoch=call.marks.epoch,
    )
    spelled = (*parent.spelled[:n_shared], *shape.spelled[n_shared:], spell(answer.message))
    context.__dict__["spelled"] = spelled  # known already: it need not be found again
    # Parsed JSON takes about twice its text.
    return context, context.n_tokens * ID_BYTES + 3 * (len(shape.tail_messages) + len(spelled[-1]))


def _read_prompt(exchange: Exchange) -> bytes:
    """Return the prompt's ids (int32, packed), empty when they are none or broken."""
    prompt = bytes(exchange.prompt_token_ids or b"")
    return b"" if len(prompt) % ID_BYTES else prompt


def _make_step(call: Call, answer: Answer, *, place: Place, shape: _Shape) -> Step:
    exchange = call.exchange
    return make_row(
        Step,
        exchange_id=exchange.id,
        choice=answer.choice,
        parent_id=place.parent_id,
        chain=call.chain,
        epoch=call.marks.epoch,
        side_call=place.side_call,
        response_id=exchange.response_id,
        shared_tokens=shape.shared_tokens,
        tail_token_ids=shape.tail_token_ids,
        completion_token_ids=answer.token_ids,
        logprobs=answer.logprobs,
        shared_messages=shape.shared_messages,
        tail_messages=shape.tail_messages,
        answer=spell(answer.message).encode(),
        answer_digests=_digest_step(call, answer, scope=place.scope),
        tools_digest=call.tools_digest,
        n_prompt_tokens=len(shape.prompt) // ID_BYTES,
        n_completion_tokens=len(answer.token_ids) // ID_BYTES,
        finish_reason=answer.finish_reason,
        status=exchange.status,
        is_exact=answer.is_exact and bool(shape.prompt),
        token_check=exchange.token_check,
        constraints=call.constraints,
        is_excluded=place.is_late or not exchange.is_training_allowed,
        temperature=call.sampling.temperature,
        top_p=call.sampling.top_p,
        top_k=call.sampling.top_k,
        started_at=exchange.started_at,
        ended_at=exchange.ended_at,
    )


def _digest_step(call: Call, answer: Answer, *, scope: str) -> list[str]:
    digests = sessions.step_digests(
        scope, story=call.story, answer=answer.message, body_digest=call.body_digest, is_failed=call.is_failed
    )
    if call.marks.trace_id:
        digests.append(sessions.scoped(call.exchange.key_id, sessions.TRACE, call.marks.trace_id))
    return digests
