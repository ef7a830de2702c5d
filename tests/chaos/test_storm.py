"""Everything at random, two things at a time: what a client has is in the pool all the same."""

import time
from collections.abc import Callable

from tests.chaos.conftest import Note
from tests.chaos.drill import Drill
from tests.chaos.world import World


def test_a_storm(world: World, seed: int, rounds: int, note: Note) -> None:
    with Drill(world, seed=seed) as drill:
        harms: list[Callable[[], None]] = [
            *(program.kill for program in world.programs()),
            lambda: world.kill_a_backend(drill.chance),
        ]
        for _ in range(2 * rounds):
            for harm in drill.chance.sample(harms, k=2):
                drill.pick_moment(0.4)
                harm()
            time.sleep(drill.chance.uniform(0, 1))
            world.mend()
            drill.wait_for_answers(20)
        tally = drill.finish()
    note(tally)
