"""Which session started which: sub-agents hang on their parent's trajectory, and a background call that names no
session finds the one it works for. By the client's own word, else by the trace id of the turn. Never across keys.

Writes nothing but a trajectory's parent.
"""

from apps.trajectories import sessions
from apps.trajectories.calls import Call
from apps.trajectories.models import SideCall, Step, Trajectory
from apps.trajectories.side_calls import read_subagent_depth

# Calls that work on a session's history. Only they and sub-agents are joined by trace: an application may put all that
# it does under one trace.
BACKGROUND = frozenset({SideCall.TITLE, SideCall.FLUSH, SideCall.COMPACTION, SideCall.EXTRACTION})
MAX_TRACED = 50  # sessions of one trace that are looked at


def may_have_parent(call: Call, *, side_call: SideCall) -> bool:
    """Say whether `find_parent` would look for one."""
    return bool(call.marks.parent_session) or side_call == SideCall.SUBAGENT or side_call in BACKGROUND


def find_parent(trajectory: Trajectory, call: Call, *, side_call: SideCall) -> Trajectory | None:
    """Return the trajectory whose session started this one, if that is known."""
    if call.marks.parent_session:
        return _find_named(trajectory, call)
    if side_call == SideCall.SUBAGENT:
        return _find_by_depth(trajectory, call)
    return find_traced_session(call, other_than=trajectory) if side_call in BACKGROUND else None


def join_parent(trajectory: Trajectory, call: Call, *, side_call: SideCall) -> None:
    """Hang the trajectory on its parent if a call names one that was not in the pool before."""
    if trajectory.parent_id is None and call.marks.parent_session:
        parent = find_parent(trajectory, call, side_call=side_call)
        if parent is not None:
            Trajectory.objects.filter(pk=trajectory.pk, parent=None).update(parent=parent)
            trajectory.parent = parent


def find_traced_session(call: Call, *, other_than: Trajectory | None = None) -> Trajectory | None:
    """Return the one main session of the call's trace; None when there are several, or none."""
    found = [trajectory for trajectory in _list_traced(call, other_than=other_than) if trajectory.parent_id is None]
    return found[0] if len(found) == 1 else None


def _find_named(trajectory: Trajectory, call: Call) -> Trajectory | None:
    named = Trajectory.objects.filter(
        agent_id=trajectory.agent_id,
        key_id=trajectory.key_id,
        session_key=call.marks.parent_session,
        started_at__lte=call.exchange.ended_at,
    )
    return named.exclude(pk=trajectory.pk).order_by("-id").first()


def _find_by_depth(trajectory: Trajectory, call: Call) -> Trajectory | None:
    """Return the latest session of the trace that is one level above the sub-agent's."""
    traced = {found.id: found for found in _list_traced(call, other_than=trajectory)}
    level = read_subagent_depth(call.messages) - 1
    above = [found for found in traced.values() if _depth_of(found, traced) == level]
    return above[-1] if above else None


def _depth_of(trajectory: Trajectory, known: dict[str, Trajectory]) -> int:
    depth, at = 0, trajectory
    while at.parent_id in known and depth < len(known):
        depth, at = depth + 1, known[at.parent_id]
    return depth


def _list_traced(call: Call, *, other_than: Trajectory | None) -> list[Trajectory]:
    if not call.marks.trace_id:
        return []
    digest = sessions.scoped(call.exchange.key_id, sessions.TRACE, call.marks.trace_id)
    ids = Step.objects.found_by([digest]).values("trajectory_id")
    traced = Trajectory.objects.filter(pk__in=ids).open_at(call.exchange.ended_at)
    if other_than is not None:
        traced = traced.exclude(pk=other_than.pk)
    return list(traced.order_by("id")[:MAX_TRACED])
