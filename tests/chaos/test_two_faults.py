"""What one fault is mended by, gone at the same moment: what a client has is in the pool all the same."""

from tests.chaos.conftest import Note
from tests.chaos.drill import Drill
from tests.chaos.world import World


def test_valkey_and_a_gateway_killed_while_calls_are_limited(world: World, seed: int, rounds: int, note: Note) -> None:
    with Drill(world, seed=seed) as drill:
        for n in range(rounds):
            drill.pick_moment()
            world.valkey.kill()
            drill.pick_moment(0.3)
            world.gateways[n % 2].kill()
            world.mend()
            drill.wait_for_answers(20)
        tally = drill.finish()
    note(tally)


def test_a_gateway_and_the_engine_killed_while_neither_postgres_nor_a_recorder_lives(
    world: World, seed: int, rounds: int, note: Note
) -> None:
    """The spool is not empty, and who wrote it does not replay it."""
    with Drill(world, seed=seed) as drill:
        for n in range(rounds):
            drill.pick_moment()
            world.postgres.kill()
            world.recorder.kill()
            drill.wait_for_answers(20)
            world.gateways[n % 2].kill()
            drill.pick_moment(0.3)
            world.engine.kill()
            world.mend()
            drill.wait_for_answers(20)
        tally = drill.finish()
    note(tally)
