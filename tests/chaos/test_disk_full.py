"""Postgres is away and the spool's disk is full: agents are served, what is lost is counted, and told."""

import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.chaos.conftest import Note
from tests.chaos.dialects import SELF_CONTAINED
from tests.chaos.drill import Drill
from tests.chaos.world import World, wait_until

Small = Callable[[World], AbstractContextManager[None]]
ROOM_BYTES = 200 * 1024
ALARM = "event=exchange.lost"
FULL_WITHIN_S = 180  # of calls on a busy machine


@contextmanager
def small_disk(world: World) -> Iterator[None]:
    """Lay a tiny file system over the spool's folder."""
    world.spool_dir.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", str(world.spool_dir)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here; the quota's drill does the same without")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(world.spool_dir)], check=True)


@contextmanager
def small_quota(world: World) -> Iterator[None]:
    """Let no file of the gateways grow any more; what they have logged so far counts too."""
    size = ROOM_BYTES + max(gateway.log.stat().st_size for gateway in world.gateways)
    children = [gateway.child for gateway in world.gateways if gateway.child is not None]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for child in children:
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        for child in children:
            resource.prlimit(child.pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of a running process are Linux's")
@pytest.mark.parametrize("small", [small_disk, small_quota])
def test_the_disk_full(world: World, seed: int, rounds: int, note: Note, small: Small) -> None:
    n_lost, n_alarms = world.count_lost(), count_alarms(world)
    with small(world), Drill(world, seed=seed, dialects=SELF_CONTAINED) as drill:
        for _ in range(rounds):
            drill.pick_moment()
            world.postgres.kill()
            n_lost_before = world.count_lost()
            wait_until(lambda n=n_lost_before: world.count_lost() > n, what="the disk is full", timeout_s=FULL_WITHIN_S)  # type: ignore[misc]
            drill.wait_for_answers(30)
            world.postgres.restart()
            drill.wait_for_answers(30)
        tally = drill.finish()
        tally.forgive("lost", "another parent", "a conversation in pieces")
    note(tally)
    assert not drill.failures, drill.failures[:3]
    n_in_doubt = rounds * len(drill.clients)  # a server that dies in a commit may have kept what it did not confirm
    assert 0 < tally.n_lost <= world.count_lost() - n_lost <= tally.n_lost + n_in_doubt
    assert count_alarms(world) > n_alarms


def count_alarms(world: World) -> int:
    return sum(gateway.log.read_text(errors="replace").count(ALARM) for gateway in world.gateways)
