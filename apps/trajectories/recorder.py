"""The recorder: takes exchanges from the ledger, in order, and folds each into the pool exactly once.

Several may run at once, and the REST API folds too when somebody asks for a call that is still pending: an advisory
lock for each agent keeps its calls in order, and `folded_at` is set in the transaction that writes the steps.
Knows nothing of what is in an exchange.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import structlog
from django.db import OperationalError, connection, transaction
from django.db.models import Func, IntegerField
from django.utils import timezone

from apps.accounts.services import mark_keys_used
from apps.core.live import publish_many
from apps.trajectories.calls import Call, read_call
from apps.trajectories.copying import check_keys_by_one_plan, read_rows
from apps.trajectories.folded_choices import is_folded_twice, mark_folded
from apps.trajectories.folding import FoldedCall, fold_calls
from apps.trajectories.known_stems import read_stems
from apps.trajectories.models import Exchange
from apps.trajectories.querysets import ExchangeQuerySet
from apps.trajectories.spool_hold import SpoolHold
from apps.trajectories.sql_states import is_deadlock, is_lock_refused, is_transient
from apps.trajectories.unassigned import keep_unassigned

log = structlog.get_logger(__name__)

_hold = SpoolHold()
ROUND = 2000
AHEAD = 1  # batches that are read while one is folded
BATCH = 400  # in one transaction: a dozen statements, however many they are

LONG_BYTES = 64 * 1024  # of a request as it is stored: of longer calls fewer are in memory at once

_Queues = dict[str, list[str]]
"""By agent, the ids of its calls that wait to be folded, in order."""

_Read = Callable[[], list[Call]]

# What is folded can be folded again, and its commit need not wait for the disk: if Postgres falls, all that it had not
# written is pending again. Never where the caller is told what became of a call.
_NO_WAIT = "set_config('synchronous_commit', 'off', true)"


class Pending(NamedTuple):
    """A call that waits to be folded, and the bytes of its request as it is stored."""

    exchange_id: str
    agent_id: str
    n_bytes: int

    @property
    def weight(self) -> int:
        """How many of a batch's calls it counts as."""
        return 1 + self.n_bytes // LONG_BYTES


def fold_pending(*, limit: int = ROUND) -> int:
    """Fold up to `limit` exchanges and return how many are done. Raises a database error when Postgres is away."""
    return _fold_all(_read_pending(Exchange.objects.unfolded(), limit=limit), wait_s=0)


def fold_agent(agent_id: str, *, wait_s: float = 2.0, limit: int = ROUND) -> int:
    """Fold an agent's pending exchanges now, waiting for a recorder that is at it. Returns how many are done."""
    pending = _read_pending(Exchange.objects.unfolded().filter(agent_id=agent_id), limit=limit)
    return _fold_all(pending, wait_s=wait_s)


def _read_pending(rows: ExchangeQuerySet, *, limit: int) -> list[Pending]:
    """Return what can be folded now: nothing while an earlier call may be spooled."""
    if _hold.is_on():
        return []
    n_bytes = Func("request", function="octet_length", output_field=IntegerField())
    pending = [Pending(*row) for row in rows.values_list("id", "agent_id", n_bytes)[:limit]]
    return [] if pending and _hold.is_on() else pending


def _fold_all(pending: Iterable[Pending], *, wait_s: float) -> int:
    by_agent: dict[str, list[Pending]] = {}
    for call in pending:
        by_agent.setdefault(call.agent_id, []).append(call)
    turn = _Turn(wait_s=wait_s)
    for group, read in _read_ahead(list(make_groups(by_agent.values()))):
        turn.fold_group(group, read)
    publish_many(turn.trajectories, kind="trajectory")
    return turn.n_done


def make_groups(queues: Iterable[Sequence[Pending]]) -> Iterator[_Queues]:
    """Yield the calls of agents in batches: of one agent, or of several with few calls, whom a transaction each would
    cost more than their calls.
    """
    group, weight = _Queues(), 0
    for piece in (piece for calls in queues for piece in _cut(calls)):
        agent_id, added = piece[0].agent_id, sum(call.weight for call in piece)
        if group and (agent_id in group or weight + added > BATCH):
            yield group
            group, weight = _Queues(), 0
        group[agent_id] = [call.exchange_id for call in piece]
        weight += added
    if group:
        yield group


def _cut(calls: Sequence[Pending]) -> Iterator[list[Pending]]:
    """Yield an agent's calls in pieces of at most a batch's weight, or of one call."""
    piece, weight = list[Pending](), 0
    for call in calls:
        if piece and weight + call.weight > BATCH:
            yield piece
            piece, weight = [], 0
        piece.append(call)
        weight += call.weight
    if piece:
        yield piece


def _read_ahead(groups: Sequence[_Queues]) -> Iterator[tuple[_Queues, _Read]]:
    """Yield each group with what reads its calls. Of several, another thread reads them, on a connection of its own,
    while Postgres works at the ones before.
    """
    if len(groups) == 1:
        yield groups[0], partial(_read_calls, _list_ids(groups[0]))
        return
    waiting: deque[tuple[_Queues, _Read]] = deque()
    with ThreadPoolExecutor(1, "reader") as reader:
        try:
            for group in groups:
                waiting.append((group, reader.submit(_read_calls, _list_ids(group)).result))
                if len(waiting) > AHEAD:
                    yield waiting.popleft()
            yield from waiting
        finally:
            reader.submit(_disconnect)


def _disconnect() -> None:
    connection.close()  # the thread's own: the name stands for another connection in each


def _list_ids(group: _Queues) -> list[str]:
    return [exchange_id for ids in group.values() for exchange_id in ids]


def _read_calls(ids: Sequence[str]) -> list[Call]:
    exchanges = read_rows(Exchange.objects.unfolded().filter(pk__in=ids))
    read_stems(exchanges)
    return list(map(read_call, exchanges))


class _Turn:
    """One go over what is pending: how many are done, and the trajectories that grew (id → project)."""

    def __init__(self, *, wait_s: float) -> None:
        self.n_done = 0
        self.trajectories: dict[str, str] = {}
        self._wait_s = wait_s
        self._busy: set[str] = set()  # agents whom another recorder has: their later calls must wait, too

    def fold_group(self, group: _Queues, read: _Read) -> None:
        """Fold the calls of several agents in one transaction; agent by agent if any of them gives trouble."""
        if len(group) > 1:
            try:
                with transaction.atomic():
                    free = _lock_agents(group.keys() - self._busy)
                    self._busy |= group.keys() - free
                    done = _fold_locked([call for call in read() if call.exchange.agent_id in free])
            except Exception as error:  # whatever is wrong with one exchange must not stop the others
                if is_transient(error) and not is_deadlock(error):
                    raise
                log.info("recorder.agent_by_agent", n=len(group))
            else:
                self._count(done)
                return
        for agent_id, ids in group.items():
            self._fold_batch(ids, agent_id, read if len(group) == 1 else partial(_read_calls, ids))

    def _fold_batch(self, ids: list[str], agent_id: str, read: _Read) -> None:
        """Fold exchanges of one agent in one transaction; one by one if any of them gives trouble."""
        if agent_id in self._busy:
            return
        try:
            with transaction.atomic():
                if not lock_agent(agent_id, wait_s=self._wait_s):
                    self._busy.add(agent_id)
                    return
                done = _fold_locked(read())
        except Exception as error:  # whatever is wrong with one exchange must not stop the others
            if len(ids) == 1:
                self.n_done += _give_up(ids[0], error)
                return
            if is_transient(error) and not is_deadlock(error):
                raise
        else:
            self._count(done)
            return
        log.info("recorder.one_by_one", agent=agent_id, n=len(ids))
        for exchange_id in ids:
            self._fold_batch([exchange_id], agent_id, partial(_read_calls, [exchange_id]))

    def _count(self, done: Sequence[FoldedCall]) -> None:
        """Count what is committed."""
        self.n_done += len(done)
        for call in done:
            if call.trajectory is not None:
                self.trajectories[call.trajectory.id] = call.trajectory.project_id


def _fold_locked(calls: Sequence[Call]) -> list[FoldedCall]:
    """Fold what another recorder has not been faster at, in order. What a call says never changes."""
    left = set(
        Exchange.objects.unfolded().filter(pk__in=[call.exchange.pk for call in calls]).values_list("pk", flat=True)
    )
    waiting = [call for call in calls if call.exchange.pk in left]
    folded = fold_calls(waiting)
    exchanges = [call.exchange for call in waiting]
    keep_unassigned([exchange for exchange, call in zip(exchanges, folded, strict=True) if call.trajectory is None])
    mark_folded({exchange.pk: call.choices for exchange, call in zip(exchanges, folded, strict=True)})
    ended = sorted((exchange.ended_at, exchange.key_id) for exchange in exchanges)
    mark_keys_used({key_id: moment for moment, key_id in ended})
    check_keys_by_one_plan()
    return folded


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


def _lock_agents(agent_ids: Iterable[str]) -> set[str]:
    """Take the turns of these agents until the transaction ends; returns those that no other recorder has."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT agent, {_NO_WAIT} FROM unnest(%s::text[]) agent "  # noqa: S608 (our own words)
            "WHERE pg_try_advisory_xact_lock(hashtextextended('fold ' || agent, 0))",
            [list(agent_ids)],
        )
        return {agent_id for agent_id, _ in cursor.fetchall()}


def lock_agent(agent_id: str, *, wait_s: float) -> bool:
    """Take the agent's turn until the transaction ends; False when another recorder has it."""
    with connection.cursor() as cursor:
        if wait_s <= 0:
            lock = f"SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0)), {_NO_WAIT}"
            cursor.execute(lock, [f"fold {agent_id}"])
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
