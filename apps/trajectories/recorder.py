"""The recorder: takes exchanges from the ledger, in order, and folds each into the pool exactly once.

Several may run at once, and the REST API folds too when somebody asks for a call that is still pending: an advisory
lock for each agent keeps its calls in order, and `folded_at` is set in the transaction that writes the steps.
Knows nothing of what is in an exchange.
"""

from enum import Enum

import structlog
from django.db import Error, IntegrityError, InterfaceError, OperationalError, connection, transaction
from django.utils import timezone

from apps.core.live import publish_news
from apps.trajectories.folding import fold_exchange
from apps.trajectories.models import Exchange, Trajectory
from apps.trajectories.querysets import ExchangeQuerySet
from apps.trajectories.spool_hold import SpoolHold

log = structlog.get_logger(__name__)

_hold = SpoolHold()
ROUND = 200
# Classes of SQLSTATE that say "not now" and nothing about the exchange: connection, rollback, a table that is not
# migrated yet, resources, locks, shutdown.
_TRANSIENT_CLASSES = ("08", "40", "42", "53", "55", "57")


class _Outcome(Enum):
    FOLDED = "folded"
    SET_ASIDE = "set aside"
    GONE = "gone"  # another recorder was faster
    BUSY = "busy"  # another recorder is at this agent


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
    busy_agents: set[str] = set()
    n_done = 0
    touched: dict[str, str] = {}
    for exchange_id, agent_id in pending:
        if agent_id in busy_agents:  # Its earlier call is not folded yet: a later one must wait.
            continue
        outcome, trajectory = _fold_one(exchange_id, agent_id, wait_s=wait_s)
        if outcome == _Outcome.BUSY:
            busy_agents.add(agent_id)
        n_done += outcome in {_Outcome.FOLDED, _Outcome.SET_ASIDE}
        if trajectory is not None:
            touched[trajectory.id] = trajectory.project_id
    for trajectory_id, project_id in touched.items():
        publish_news(project_id, kind="trajectory", object_id=trajectory_id)
    return n_done


def _fold_one(exchange_id: str, agent_id: str, *, wait_s: float) -> tuple[_Outcome, Trajectory | None]:
    try:
        with transaction.atomic():
            if not _lock_agent(agent_id, wait_s=wait_s):
                return _Outcome.BUSY, None
            exchange = Exchange.objects.filter(pk=exchange_id, folded_at=None).first()
            if exchange is None:
                return _Outcome.GONE, None
            trajectory = fold_exchange(exchange)
            Exchange.objects.filter(pk=exchange_id, folded_at=None).update(folded_at=timezone.now(), fold_error="")
    except Exception as error:  # noqa: BLE001 (whatever is wrong with one exchange must not stop the others)
        return _give_up(exchange_id, error), None
    log.debug("exchange.folded", exchange=exchange_id, trajectory=trajectory.id if trajectory else None)
    return _Outcome.FOLDED, trajectory


def _give_up(exchange_id: str, error: Exception) -> _Outcome:
    """Decide what an error is about: the server (raised again), an exchange that is in the pool already, or poison."""
    if is_transient(error):
        raise error
    if isinstance(error, IntegrityError) and _constraint(error) == "exchange_is_folded_once":
        Exchange.objects.filter(pk=exchange_id).update(folded_at=timezone.now())  # Somebody put it back into the queue.
        return _Outcome.GONE
    return _set_aside(exchange_id, error)


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
            if sql_state(error) != "55P03":  # lock_not_available
                raise
            return False
        cursor.execute("SELECT set_config('lock_timeout', '0', true)")
        return True


def _set_aside(exchange_id: str, error: Exception) -> _Outcome:
    """Take a poisonous exchange out of the queue; it stays in the ledger with the reason."""
    log.error("exchange.set_aside", exchange=exchange_id, error=repr(error), exc_info=error)
    reason = f"{type(error).__name__}: {error}".replace("\x00", "")[:2000]
    reason = reason.encode("utf-8", "replace").decode()
    changed = Exchange.objects.filter(pk=exchange_id, folded_at=None).update(
        folded_at=timezone.now(), fold_error=reason
    )
    return _Outcome.SET_ASIDE if changed == 1 else _Outcome.GONE


def retry_set_aside(*, project_id: str) -> int:
    """Put a project's exchanges that were set aside back into the queue; returns how many."""
    rows = Exchange.objects.set_aside().filter(project_id=project_id)
    return rows.update(folded_at=None, fold_error="")


def is_transient(error: Exception) -> bool:
    """Say whether the error is about the server or the moment and not about the row."""
    state = sql_state(error)
    if state is None:
        return isinstance(error, (OperationalError, InterfaceError))  # the connection itself
    return isinstance(error, Error) and state.startswith(_TRANSIENT_CLASSES)


def _constraint(error: IntegrityError) -> str | None:
    diagnosis = getattr(error.__cause__, "diag", None)
    return getattr(diagnosis, "constraint_name", None)


def sql_state(error: BaseException) -> str | None:
    """Return Postgres's five-letter code, None for an error of the connection itself."""
    return getattr(error.__cause__, "sqlstate", None)
