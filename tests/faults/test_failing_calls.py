"""A store that fails at any one of its calls: an error that says so, and nothing is lost.

A small world is played again and again. Each time one call further fails, once or from then on, for
each kind of call, until the world comes to its end without having met it. What the failure ends is
opened again with a store that works, and everything must come out as if nothing had been.
"""

from itertools import count
from random import Random

import pytest
import trio

from keyrun.storage import StoreError
from tests.faults.simulated.audit import audit
from tests.faults.simulated.casting import cast
from tests.faults.simulated.simulation import FOREVER, Simulation, played
from tests.faults.simulated.stores import FailingStore, Seam
from tests.faults.soaking import amount, shown

WORLDS = range(amount(2, 30))
STRIDE = {Seam.PUT: amount(5, 1)}
"""Of the calls of which there are many only some are tried, unless there is time."""
RUNS = 3


class Struck(Simulation):
    """A small world whose store fails at one call."""

    def __init__(self, seed: int, seam: Seam, number: int, *, once: bool) -> None:
        self.failing = FailingStore()
        super().__init__(seed, self.failing)
        self.take(cast(Random(seed), runs=RUNS, keys=2, span=1.0))
        self.jumps = []
        self.world.steady = True
        self.errors: list[BaseException] = []
        self._strike = (seam, number, once)

    async def run(self) -> None:
        seam, number, once = self._strike
        self.failing.fail_at(seam, number, once=once)
        try:
            with trio.fail_after(FOREVER):
                await self.live(None)
        except BaseException as error:
            self.errors = leaves(error)
        self.world.restarted()
        self.failing.mend()
        if self.errors:
            with trio.fail_after(FOREVER):
                await self.live(None)
            self.world.restarted()
        audit(self)


def leaves(error: BaseException) -> list[BaseException]:
    """The errors in a group, or the one."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


def reason(error: BaseException) -> str:
    """What an error says, and what led to it."""
    cause = "" if error.__cause__ is None else reason(error.__cause__)
    return f"{error} {cause}"


@pytest.mark.parametrize(
    ("seam", "once"),
    # A store that cannot take a record has failed, so there is no "once" for that.
    [(seam, once) for seam in Seam for once in (True, False) if (seam, once) != (Seam.PUT, True)],
)
def test_whichever_call_fails_nothing_is_lost_and_the_error_says_so(seam: Seam, once: bool) -> None:
    struck = 0
    for seed in shown(WORLDS, f"{seam} {once}"):
        for number in count(1, STRIDE.get(seam, 1)):
            world = played(Struck(seed, seam, number, once=once), seed)
            where = f"world {seed}, {seam} number {number}"
            assert not world.world.breaches, (where, *world.world.breaches)
            if not world.failing.failures:
                assert not world.errors, (where, world.errors)
                break
            struck += 1
            strange = [error for error in world.errors if not isinstance(error, StoreError)]
            assert not strange, (where, strange)
            told = any("the disk gave up" in reason(error) for error in world.errors)
            assert told or (once and not world.errors), (where, world.errors)
    assert struck > 8 * len(WORLDS)
