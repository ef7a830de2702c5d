"""Turns one exchange into steps of a trajectory. Knows neither the loop nor the locks around it (`recorder.py`)."""

import json

from django.db.models import F, Max

from apps.core.contracts.arrays import ID_BYTES
from apps.trajectories import sessions
from apps.trajectories.calls import Answer, Call, UnreadableExchange, read_call
from apps.trajectories.contexts import ContextCache
from apps.trajectories.messages import make_title
from apps.trajectories.models import Exchange, ExchangeStatus, Step, Trajectory
from apps.trajectories.placing import Place, find_place, start_trajectory
from apps.trajectories.shared_rows import SharedRows
from apps.trajectories.trie import Context, split_messages, split_tokens

_contexts = ContextCache()


def fold_exchange(exchange: Exchange, *, shared: SharedRows | None = None) -> Trajectory | None:
    """Add the exchange's steps to its trajectory and return it; None for a call that failed before any session, and for
    one in tokens that names none: its maker submits it (`submitting.py`).

    A call that got no answer makes no step; its trajectory, if it has one, is marked. A call that ended after its
    trajectory was complete is kept there, out of training. Raises UnreadableExchange when it has no place at all.
    """
    shared = shared or SharedRows()
    agent = shared.find_agent(exchange)
    if agent is None:
        raise UnreadableExchange(f"its agent {exchange.agent_id} or project {exchange.project_id} no longer exists")
    key = shared.find_key(exchange, agent)
    call = read_call(exchange)
    if call.is_in_tokens and not (exchange.trajectory_id or exchange.session_key):
        return None
    place = find_place(call, agent=agent, key=key)
    trajectory, is_new = place.trajectory, place.trajectory is None
    if trajectory is None:
        if not call.answers and not place.session_key:
            return None
        trajectory = start_trajectory(call, place, agent=agent, key=key)
    steps = _make_steps(call, place, first_index=0 if is_new else _next_index(trajectory))
    for step in steps:
        step.trajectory, step.version_id = trajectory, shared.find_version_id(exchange.version_id)
    if steps:
        shared.keep_tools(project_id=trajectory.project_id, digest=call.tools_digest, tools_json=call.tools_json)
        Step.objects.bulk_create(steps)
    _count_in(call, trajectory, steps)
    if place.replaces:
        Step.objects.filter(pk=place.replaces).update(is_excluded=True)
    return trajectory


def _next_index(trajectory: Trajectory) -> int:
    last: int | None = Step.objects.filter(trajectory=trajectory).aggregate(last=Max("index"))["last"]
    return 0 if last is None else last + 1


def _make_steps(call: Call, place: Place, *, first_index: int) -> list[Step]:
    """Return one step for each choice; the choices of a call are siblings."""
    if not call.answers:
        return []
    context = _contexts.find(place.parent_id) if place.parent_id else Context()
    steps = []
    for offset, answer in enumerate(call.answers):
        step = _make_step(call, answer, place=place, context=context)
        step.index = first_index + offset
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


def _count_in(call: Call, trajectory: Trajectory, steps: list[Step]) -> None:
    """Bring the trajectory's sums up to date. The row is locked, or new and unseen."""
    trajectory.title = trajectory.title or make_title(call.messages)
    trajectory.has_error = trajectory.has_error or call.exchange.status == ExchangeStatus.ERROR
    trajectory.last_step_at = max(trajectory.last_step_at, call.exchange.ended_at)
    Trajectory.objects.filter(pk=trajectory.pk).update(
        title=trajectory.title,
        has_error=trajectory.has_error,
        last_step_at=trajectory.last_step_at,
        n_steps=F("n_steps") + len(steps),
        n_prompt_tokens=F("n_prompt_tokens") + (steps[0].n_prompt_tokens if steps else 0),  # choices share it
        n_completion_tokens=F("n_completion_tokens") + sum(step.n_completion_tokens for step in steps),
    )
