"""The outbox: ends that the terminal hook must be told, at least once, also after a crash.

The ends of one key are told in the order in which they happened: one that the hook does not take
is told again later, and those behind it wait for it. Keys don't wait for each other, except that
only so many hooks run at once.
"""

from collections import deque
from heapq import heappop, heappush
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import trio

from keyrun.runtime.logs import log_key, logger
from keyrun.runtime.policies.retry import Retry
from keyrun.runtime.records import Standing, Submission
from keyrun.runtime.values import RunOutcome
from keyrun.runtime.wording import named
from keyrun.storage import StoreCorrupt

if TYPE_CHECKING:
    from keyrun.runtime.engine import Engine

PATIENCE = Retry.exponential(base=0.5, max_delay=60.0)
AT_ONCE = 16
"""How many hooks may run side by side."""
AGAIN_AT_ONCE = AT_ONCE // 2
"""How many of them may be for ends that were not taken before, so that others get through."""


class Letter(NamedTuple):
    """One end to be told."""

    number: int
    generation: int


class Pile:
    """The ends of one key that are to be told, the oldest first."""

    __slots__ = ("attempts", "key", "letters")

    def __init__(self, key: str) -> None:
        self.key = key
        self.letters: deque[Letter] = deque()
        self.attempts = 0
        """How often the hook did not take the first of them."""


class Outbox:
    """Tells the hook, and remembers whom it has told."""

    def __init__(self, engine: "Engine", timeout: float) -> None:
        self._engine = engine
        self._timeout = timeout
        """Seconds that the hook has for one end: one that hangs holds up the other keys."""
        self._piles: dict[str, Pile] = {}
        self._ready: deque[Pile] = deque()
        self._again: deque[Pile] = deque()
        """Those of the ready whose first letter was not taken before."""
        self._telling_again = 0
        self._resting: list[tuple[float, int, Pile]] = []
        """Piles whose first letter was not taken: when it is told again."""
        self._rests = 0
        self._tellers = 0
        self._untried = 0
        """Piles whose first letter has never been tried."""
        self._changed = trio.Event()
        self._tried = trio.Event()

    def add(self, key: str, number: int, generation: int) -> None:
        """The end of a run is durable and is to be told."""
        pile = self._piles.get(key)
        if pile is None:
            pile = self._piles[key] = Pile(key)
            self._untried += 1
            self._ready.append(pile)
            self._changed.set()
        pile.letters.append(Letter(number, generation))

    def untold(self, key: str, number: int, generation: int) -> bool:
        """Whether the hook has yet to take this end, given that it stands in the outbox."""
        if self._engine.hook is None:
            return True
        pile = self._piles.get(key)
        return pile is not None and Letter(number, generation) in pile.letters

    async def recover(self) -> None:
        """Queue what an earlier process did not come to tell, in the order of the ends."""
        ledger, found = self._engine.ledger, []
        for record, _ in await self._engine.store.scan("outbox", prefix=ledger.prefix):
            number, rest = ledger.split_number(record)
            letter = Letter(number, int.from_bytes(rest, "big"))
            try:
                end = await self._read(letter)
            except StoreCorrupt as error:
                _give_up(letter, error)
                continue
            if end is None:
                self._done(letter)
            else:
                submission, standing = end
                when = (standing.ended_at or 0.0, standing.place or 0, number)
                found.append((when, submission.key, letter))
        for _, key, letter in sorted(found, key=itemgetter(0)):
            self.add(key, letter.number, letter.generation)

    async def tried(self) -> None:
        """Return when everything has been told that does not wait for something to be told
        again."""
        while self._untried:
            self._tried = trio.Event()
            await self._tried.wait()

    async def run(self) -> None:
        """Tell the hook for ever."""
        async with trio.open_nursery() as nursery:
            while True:
                self._changed = trio.Event()
                while self._resting and self._resting[0][0] <= trio.current_time():
                    self._again.append(heappop(self._resting)[2])
                again = min(len(self._again), AGAIN_AT_ONCE - self._telling_again)
                for _ in range(min(len(self._ready) + again, AT_ONCE - self._tellers)):
                    self._tellers += 1
                    nursery.start_soon(self._tell)
                due = self._resting[0][0] if self._resting else float("inf")
                with trio.move_on_at(due):
                    await self._changed.wait()

    async def _tell(self) -> None:
        """Tell one end of each key that is ready, as long as there are any."""
        try:
            while (pile := self._next()) is not None:
                again = pile.attempts > 0
                self._telling_again += again
                taken = await self._deliver(pile.letters[0], pile.attempts)
                self._telling_again -= again
                if taken:
                    self._taken(pile)
                else:
                    self._not_taken(pile)
                if not self._untried:
                    self._tried.set()
                await trio.lowlevel.checkpoint()
        except Exception as error:
            self._engine.fail(error)
        finally:
            self._tellers -= 1
            self._changed.set()

    def _next(self) -> Pile | None:
        if self._again and self._telling_again < AGAIN_AT_ONCE:
            return self._again.popleft()
        return self._ready.popleft() if self._ready else None

    def _taken(self, pile: Pile) -> None:
        pile.letters.popleft()
        self._untried -= not pile.attempts
        if pile.letters:
            pile.attempts = 0
            self._untried += 1
            self._ready.append(pile)
        else:
            del self._piles[pile.key]

    def _not_taken(self, pile: Pile) -> None:
        self._untried -= not pile.attempts
        pile.attempts += 1
        self._rests += 1
        number = pile.letters[0].number
        due = trio.current_time() + _delay(number, pile.attempts)
        heappush(self._resting, (due, self._rests, pile))
        self._changed.set()

    async def _deliver(self, letter: Letter, attempts: int) -> bool:
        """Tell the hook of one end. False if that is to be done again."""
        engine = self._engine
        assert engine.hook is not None
        try:
            end = await self._read(letter)
        except StoreCorrupt as error:
            _give_up(letter, error)
            return True
        if end is not None:
            failure: Exception | None = None
            try:
                with trio.move_on_after(self._timeout) as scope:
                    await engine.hook(self._outcome(*end))
            except Exception as error:
                failure = error
            if failure is not None or scope.cancelled_caught:
                self._not_heard(end[0], failure, _delay(letter.number, attempts + 1))
                return False
        self._done(letter)
        return True

    def _not_heard(self, run: Submission, error: Exception | None, delay: float) -> None:
        """Log that the hook did not take an end, in time if it raised nothing."""
        what = f"did not return within its hook_timeout of {self._timeout:g} s"
        if error is not None:
            what = f"raised {named(error)}"
        said = f"on_terminal {what} for run {run.run_id} (key {run.key}); it is told again in"
        log_key(run.key, "hook_failed", f"{said} {delay:.1f} s", run_id=run.run_id, error=error)

    def _done(self, letter: Letter) -> None:
        record = self._engine.ledger.outbox(letter.number, letter.generation)
        group = self._engine.store.open_group()
        group.delete("outbox", record)
        group.when_durable(self._engine.sweeper.told)

    async def _read(self, letter: Letter) -> tuple[Submission, Standing] | None:
        """How that generation of the run ended, or None if the run was forgotten."""
        ledger = self._engine.ledger
        damage: StoreCorrupt | None = None
        with ledger.store.view():
            submission = await ledger.submission(letter.number)
            try:
                kept = await ledger.get("outbox", ledger.outbox(letter.number, letter.generation))
            except StoreCorrupt as error:
                # Unless the run was redriven, its own record says the same.
                kept, damage = None, error
            standing = Standing.read(kept) if kept else await ledger.standing(letter.number)
        if submission is None or standing is None or standing.generation != letter.generation:
            if damage is not None:
                raise damage
            return None
        return submission, standing

    def _outcome(self, submission: Submission, standing: Standing) -> RunOutcome:
        status = self._engine.reading.status_of(submission, standing)
        assert standing.ended_at is not None
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


def _give_up(letter: Letter, error: StoreCorrupt) -> None:
    """What is damaged holds up nobody. It stays, for whoever mends the store."""
    logger.error(
        "the end of run number %d cannot be told, and is tried again at the next open: %s",
        letter.number,
        error,
        extra={"number": letter.number, "event": "hook_failed"},
    )


def _delay(number: int, attempts: int) -> float:
    return PATIENCE.delay_for(str(number), "on_terminal", attempts)
