"""The recorder: takes exchanges from the ledger, in order, and folds each into the pool exactly once.

Several may run at once, and the REST API folds too when somebody asks for a call that is still pending: an advisory
lock for each agent keeps its calls in order, and `folded_at` is set in the transaction that writes the steps.
Knows nothing of what is in an exchange.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import structlog
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from apps.accounts.services import mark_keys_used
from apps.core.live import publish_many
from apps.trajectories.folded_choices import is_folded_twice, mark_folded
from apps.trajectories.folding import fold_exchanges
from apps.trajectories.known_stems import read_stems
from apps.trajectories.models import Exchange
from apps.trajectories.querysets import ExchangeQuerySet
from apps.trajectories.spool_hold import SpoolHold
from apps.trajectories.sql_states import is_deadlock, is_lock_refused, is_transient
from apps.trajectories.unassigned import keep_unassigned

log = structlog.get_logger(__name__)

_hold = SpoolHold()
ROUND = 400
BATCH = 200  # in one transaction: a dozen statements, however many they are


@dataclass(frozen=True, kw_only=True)
class _Folded:
    """What became of exchanges: how many are done, the trajectories that grew (id → project), and whether another
    recorder has the agent, so that its later calls must wait."""

    n_done: int = 0
    trajectories: dict[str, str] = field(default_factory=dict)
    is_busy: bool = False


_Queues = dict[str, list[str]]
"""By agent, the ids of its calls that wait to be folded, in order."""


def fold_pending(*, limit: int = ROUND) -> int:
    """Fold up to `limit` exchanges and return how many are done. Raises a database error when Postgres is away."""
    return _fold_all(_read_pending(Exchange.objects.unfolded(), limit=limit), wait_s=0)


def fold_agent(agent_id: str, *, wait_s: float = 2.0, limit: int = ROUND) -> int:
    """Fold an agent's pending exchanges now, waiting for a recorder that is at it. Returns how many are done."""
    pending = _read_pending(Exchange.objects.unfolded().filter(agent_id=agent_id), limit=limit)
    return _fold_all(pending, wait_s=wait_s)


def _read_pending(rows: ExchangeQuerySet, *, limit: int) -> list[tuple[str, str]]:
    """Return the ids of what can be folded now, each with its agent: nothing while an earlier call may be spooled."""
    if _hold.is_on():
        return []
    pending = list(rows.values_list("id", "agent_id")[:limit])
    return [] if pending and _hold.is_on() else pending


def _fold_all(pending: list[tuple[str, str]], *, wait_s: float) -> int:
    by_agent: dict[str, list[str]] = {}
    for exchange_id, agent_id in pending:
        by_agent.setdefault(agent_id, []).append(exchange_id)
    folded = _sum(_fold_group(group, wait_s=wait_s) for group in _make_groups(by_agent))
    publish_many(folded.trajectories, kind="trajectory")
    return folded.n_done


def _make_groups(by_agent: _Queues) -> Iterator[_Queues]:
    """Yield agents with few calls together, up to a batch; a transaction for each would cost more than their calls."""
    group: _Queues = {}
    for agent_id, ids in by_agent.items():
        if group and sum(map(len, group.values())) + len(ids) > BATCH:
            yield group
            group = {}
        group[agent_id] = ids
    if group:
        yield group


def _fold_group(group: _Queues, *, wait_s: float) -> _Folded:
    """Fold the calls of several agents in one transaction; agent by agent if any of them gives trouble."""
    if len(group) > 1:
        try:
            with transaction.atomic():
                free = _lock_agents(group)
                return _fold_locked([exchange_id for agent_id in free for exchange_id in group[agent_id]])
        except Exception as error:  # whatever is wrong with one exchange must not stop the others
            if is_transient(error) and not is_deadlock(error):
                raise
        log.info("recorder.agent_by_agent", n=len(group))
    return _sum(_fold_queue(ids, agent_id, wait_s=wait_s) for agent_id, ids in group.items())


def _fold_queue(ids: list[str], agent_id: str, *, wait_s: float) -> _Folded:
    """Fold exchanges of one agent, batch by batch, as long as no other recorder has it."""
    batches = (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
    return replace(_sum(_fold_batch(batch, agent_id, wait_s=wait_s) for batch in batches), is_busy=False)


def _fold_batch(ids: list[str], agent_id: str, *, wait_s: float) -> _Folded:
    """Fold exchanges of one agent in one transaction; one by one if any of them gives trouble."""
    try:
        with transaction.atomic():
            if not _lock_agent(agent_id, wait_s=wait_s):
                return _Folded(is_busy=True)
            return _fold_locked(ids)
    except Exception as error:  # whatever is wrong with one exchange must not stop the others
        if len(ids) == 1:
            return _Folded(n_done=_give_up(ids[0], error))
        if is_transient(error) and not is_deadlock(error):
            raise
    log.info("recorder.one_by_one", agent=agent_id, n=len(ids))
    return _sum(_fold_batch([exchange_id], agent_id, wait_s=wait_s) for exchange_id in ids)


def _sum(parts: Iterable[_Folded]) -> _Folded:
    """Add up what becomes of parts of a queue, in order. It ends where the agent is busy: a later call must wait for an
    earlier one.
    """
    n_done, trajectories = 0, dict[str, str]()
    for part in parts:
        n_done += part.n_done
        trajectories |= part.trajectories
        if part.is_busy:
            return _Folded(n_done=n_done, trajectories=trajectories, is_busy=True)
    return _Folded(n_done=n_done, trajectories=trajectories)


def _fold_locked(ids: list[str]) -> _Folded:
    """Fold what another recorder has not been faster at, in order."""
    exchanges = list(Exchange.objects.unfolded().filter(pk__in=ids))
    read_stems(exchanges)
    calls = fold_exchanges(exchanges)
    keep_unassigned([exchange for exchange, call in zip(exchanges, calls, strict=True) if call.trajectory is None])
    mark_folded({exchange.pk: call.choices for exchange, call in zip(exchanges, calls, strict=True)})
    ended = sorted((exchange.ended_at, exchange.key_id) for exchange in exchanges)
    mark_keys_used({key_id: moment for moment, key_id in ended})
    trajectories = {call.trajectory.id: call.trajectory.project_id for call in calls if call.trajectory is not None}
    return _Folded(n_done=len(exchanges), trajectories=trajectories)


def _give_up(exchange_id: str, error: Exception) -> int:
    """Decide what an error is about: the server (raised again), an exchange that is in the pool already, or poison.

    Returns 1 if the exchange is out of the queue by this.
    """
    if is_transient(error):
        raise error
    if is_folded_twice(error):
        Exchange.objects.filter(pk=exchange_id).update(folded_at=timezone.now())  # Somebody put it back into the queue.
        return 0
    return _set_aside(exchange_id, error)


def _lock_agents(agent_ids: Iterable[str]) -> list[str]:
    """Take the turns of these agents until the transaction ends; returns those that no other recorder has."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT agent FROM unnest(%s::text[]) agent "
            "WHERE pg_try_advisory_xact_lock(hashtextextended('fold ' || agent, 0))",
            [list(agent_ids)],
        )
        return [agent_id for (agent_id,) in cursor.fetchall()]


def _lock_agent(agent_id: str, *, wait_s: float) -> bool:
    """Take the agent's turn until the transaction ends; False when another recorder has it."""
    with connection.cursor() as cursor:
        if wait_s <= 0:
            cursor.execute("SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))", [f"fold {agent_id}"])
            return bool(cursor.fetchone()[0])
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{int(wait_s * 1000)}ms"])
        try:
            with transaction.atomic():
                cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"fold {agent_id}"])
        except OperationalError as error:
            if not is_lock_refused(error):
                raise
            return False
        cursor.execute("SELECT set_config('lock_timeout', '0', true)")
        return True


def _set_aside(exchange_id: str, error: Exception) -> int:
    """Take a poisonous exchange out of the queue; it stays in the ledger with the reason. Returns 1 if it was there."""
    log.error("exchange.set_aside", exchange=exchange_id, error=repr(error), exc_info=error)
    reason = f"{type(error).__name__}: {error}".replace("\x00", "")[:2000]
    reason = reason.encode("utf-8", "replace").decode()
    return Exchange.objects.filter(pk=exchange_id, folded_at=None).update(folded_at=timezone.now(), fold_error=reason)
