"""kill -9 of each process under load, at random moments: every answer that a client has is in the pool exactly once."""

import time

from tests.chaos.conftest import Note
from tests.chaos.drill import Drill
from tests.chaos.world import World


def test_gateways_killed(world: World, seed: int, rounds: int, note: Note) -> None:
    """In the midst of writing to Postgres; the agents go on at the other one."""
    with Drill(world, seed=seed) as drill:
        for n in range(rounds + 1):
            victim = world.gateways[n % len(world.gateways)]
            drill.pick_moment()
            victim.kill()
            drill.wait_for_answers(30)
            victim.restart()
        tally = drill.finish()
    note(tally)


def test_the_recorder_killed(world: World, seed: int, rounds: int, note: Note) -> None:
    """No agent notices; what it was at is folded by the next one, once."""
    with Drill(world, seed=seed) as drill:
        for _ in range(3 * rounds):
            drill.pick_moment()
            world.recorder.kill()
            time.sleep(drill.chance.uniform(0, 0.3))
            world.recorder.restart()
            drill.wait_for_answers(20)
        tally = drill.finish()
    note(tally)
    assert not drill.failures


def test_postgres_killed(world: World, seed: int, rounds: int, note: Note) -> None:
    """The whole server, or one of its processes, after which it restarts itself. Agents are served meanwhile."""
    with Drill(world, seed=seed) as drill:
        for n in range(2 * rounds):
            drill.pick_moment()
            if n % 2:
                world.kill_a_backend(drill.chance)
            else:
                world.postgres.kill()
                time.sleep(drill.chance.uniform(0, 1))
                world.postgres.start()
            drill.wait_for_answers(30)
        tally = drill.finish()
    note(tally)
    assert not drill.failures, drill.failures[:3]


def test_gateways_cut_off(world: World, seed: int, rounds: int, note: Note) -> None:
    """Only the gateways lose Postgres, for a moment: turns in the spool are folded before those that follow them."""
    with Drill(world, seed=seed) as drill:
        for _ in range(5 * rounds):
            drill.pick_moment()
            world.cut_gateways_off()
            drill.wait_for_answers(10)
        tally = drill.finish()
    note(tally)
    assert not drill.failures, drill.failures[:3]
