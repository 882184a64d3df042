"""The outbox: ends that the terminal hook must be told, at least once, also after a crash.

The hook is told of one end after the other, in the order of the ends. One that it does not take
waits by itself and is told again later; it holds up nobody else.
"""

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import attrs
import trio

from keyrun.runtime.logs import logger
from keyrun.runtime.retry import Retry
from keyrun.runtime.values import RunOutcome

if TYPE_CHECKING:
    from keyrun.runtime.engine import Engine

PATIENCE = Retry.exponential(base=0.5, max_delay=60.0)


@attrs.frozen(order=True)
class Letter:
    """One end to be told: when, after how many attempts."""

    due: float
    order: int
    number: int
    generation: int
    attempts: int = 0


class Outbox:
    """Tells the hook, and remembers whom it has told."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._letters: list[Letter] = []
        self._order = 0
        self._untried = 0
        self._changed = trio.Event()
        self._tried = trio.Event()

    def add(self, number: int, generation: int) -> None:
        """The end of a run is durable and is to be told."""
        self._order += 1
        self._untried += 1
        heappush(self._letters, Letter(trio.current_time(), self._order, number, generation))
        self._changed.set()

    async def recover(self) -> None:
        """Queue what an earlier process did not come to tell."""
        ledger = self._engine.ledger
        for key, _ in await self._engine.store.scan("outbox", prefix=ledger.prefix):
            number, rest = ledger.split_number(key)
            self.add(number, int.from_bytes(rest, "big"))

    async def tried(self) -> None:
        """Return when everything has been told, or has been tried to be told, at least once."""
        while self._untried:
            self._tried = trio.Event()
            await self._tried.wait()

    async def run(self) -> None:
        """Tell the hook for ever."""
        while True:
            self._changed = trio.Event()
            due = self._letters[0].due if self._letters else float("inf")
            if due > trio.current_time():
                with trio.move_on_at(due):
                    await self._changed.wait()
                continue
            letter = heappop(self._letters)
            await self._deliver(letter)
            if not letter.attempts:
                self._untried -= 1
                if not self._untried:
                    self._tried.set()

    async def _deliver(self, letter: Letter) -> None:
        engine = self._engine
        assert engine.hook is not None
        attempts = letter.attempts + 1
        try:
            outcome = await self._outcome(letter.number)
            if outcome is not None:
                await engine.hook(outcome)
        except Exception as error:
            delay = PATIENCE.delay_for(str(letter.number), "on_terminal", attempts)
            logger.exception(
                "on_terminal raised %s for run number %d; it is told again in %.1f s",
                type(error).__name__,
                letter.number,
                delay,
                extra={"number": letter.number, "event": "hook_failed"},
            )
            due = trio.current_time() + delay
            heappush(self._letters, attrs.evolve(letter, due=due, attempts=attempts))
        else:
            key = engine.ledger.outbox(letter.number, letter.generation)
            engine.store.open_group().delete("outbox", key)

    async def _outcome(self, number: int) -> RunOutcome | None:
        engine = self._engine
        submission = await engine.ledger.submission(number)
        standing = await engine.ledger.standing(number)
        if submission is None or standing is None or standing.ended_at is None:
            return None
        status = engine.reading.status_of(submission, standing)
        return RunOutcome(
            run_id=status.run_id,
            key=status.key,
            workflow=status.workflow,
            state=status.state,
            result=status.result,
            reason=status.reason,
            failure=status.failure,
            step=status.step,
            steps_done=status.steps_done,
            headers=status.headers,
            ended_at=standing.ended_at,
            generation=status.generation,
        )
