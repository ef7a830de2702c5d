"""Turns one exchange into steps of a trajectory. Knows neither the loop nor the locks around it (`recorder.py`)."""

import json

from apps.core.contracts.arrays import ID_BYTES
from apps.trajectories import sessions
from apps.trajectories.calls import Answer, Call, UnreadableExchange, read_call
from apps.trajectories.contexts import ContextCache
from apps.trajectories.models import Exchange, Step, Trajectory
from apps.trajectories.placing import Place, find_place, start_trajectory
from apps.trajectories.shared_rows import SharedRows
from apps.trajectories.trie import Context, split_messages, split_tokens

_contexts = ContextCache()


def fold_exchange(exchange: Exchange, *, shared: SharedRows) -> Trajectory | None:
    """Add the exchange's steps to its trajectory and return it; None for a call that failed before any session, and for
    one in tokens that names none: its maker submits it (`submitting.py`).

    A call that got no answer makes no step; its trajectory, if it has one, is marked. A call that ended after its
    trajectory was complete is kept there, out of training. Raises UnreadableExchange when it has no place at all.
    """
    agent = shared.find_agent(exchange)
    if agent is None:
        raise UnreadableExchange(f"its agent {exchange.agent_id} or project {exchange.project_id} no longer exists")
    key = shared.find_key(exchange, agent)
    call = read_call(exchange)
    if call.is_in_tokens and not (exchange.trajectory_id or exchange.session_key):
        return None
    place = find_place(call, agent=agent, key=key, shared=shared)
    if place.trajectory is None and not call.answers and not place.session_key:
        return None
    trajectory = place.trajectory or start_trajectory(call, place, agent=agent, key=key, shared=shared)
    steps = _make_steps(call, place, version_id=shared.find_version_id(exchange.version_id))
    if steps:
        shared.keep_tools(project_id=trajectory.project_id, digest=call.tools_digest, tools_json=call.tools_json)
        shared.add_steps(trajectory, steps)
    shared.count_in(trajectory, exchange, messages=call.messages, steps=steps)
    if place.replaces:
        Step.objects.filter(pk=place.replaces).update(is_excluded=True)
    return trajectory


def _make_steps(call: Call, place: Place, *, version_id: str | None) -> list[Step]:
    """Return one step for each choice; the choices of a call are siblings."""
    if not call.answers:
        return []
    context = _contexts.find(place.parent_id) if place.parent_id else Context()
    steps = []
    for answer in call.answers:
        step = _make_step(call, answer, place=place, context=context)
        step.version_id = version_id
        steps.append(step)
        _keep_context(call, answer, step)
    return steps


def _keep_context(call: Call, answer: Answer, step: Step) -> None:
    prompt = _read_prompt(call.exchange)
    context = Context(token_ids=prompt + answer.token_ids, messages=(*call.messages, answer.message))
    n_bytes = len(context.token_ids) + 2 * len(call.exchange.request)  # parsed JSON takes about twice its text
    _contexts.keep(step.id, context, n_bytes=n_bytes)


def _read_prompt(exchange: Exchange) -> bytes:
    """Return the prompt's ids (int32, packed), empty when they are none or broken."""
    prompt = bytes(exchange.prompt_token_ids or b"")
    return b"" if len(prompt) % ID_BYTES else prompt


def _make_step(call: Call, answer: Answer, *, place: Place, context: Context) -> Step:
    exchange = call.exchange
    prompt = _read_prompt(exchange)
    shared_tokens, tail = split_tokens(context.token_ids, prompt)
    shared_messages, tail_messages = split_messages(context.messages, call.messages)
    return Step(
        exchange_id=exchange.id,
        choice=answer.choice,
        parent_id=place.parent_id,
        chain=call.chain,
        epoch=call.marks.epoch,
        side_call=place.side_call,
        response_id=exchange.response_id,
        shared_tokens=shared_tokens,
        tail_token_ids=tail,
        completion_token_ids=answer.token_ids,
        logprobs=answer.logprobs,
        shared_messages=shared_messages,
        tail_messages=tail_messages,
        answer=json.dumps(answer.message, separators=(",", ":")).encode(),
        answer_digests=_digest_step(call, answer, scope=place.scope),
        tools_digest=call.tools_digest,
        n_prompt_tokens=len(prompt) // ID_BYTES,
        n_completion_tokens=len(answer.token_ids) // ID_BYTES,
        finish_reason=answer.finish_reason,
        status=exchange.status,
        is_exact=answer.is_exact and bool(prompt),
        token_check=exchange.token_check,
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
