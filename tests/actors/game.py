"""A random world of actors and clients, played on virtual time.

Everything random comes from the seed, the order in which Trio runs tasks included, so a world
that goes wrong goes wrong again.
"""

import enum
import math
import random
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import trio
import trio._core._run as trio_run
from trio.testing import MockClock

from keyrun.actors import (
    Actor,
    ActorFailed,
    ActorStopped,
    ActorSystem,
    AskTimeout,
    DeadLetter,
    Directive,
    FailedMessage,
    KeyQuarantined,
    MailboxFull,
    Supervision,
    SystemClosed,
)
from tests.actors.history import History, Letter
from tests.actors.scripted import Boom, Fatal

FOREVER = 100_000
"""Virtual seconds that no world needs."""


class Ending(enum.Enum):
    """How the block of the system is left."""

    DRAINED = "after all clients are done"
    BUSY = "while clients still tell"
    FAILED = "by an exception"
    CANCELLED = "by a cancellation"


class Player(Actor[Letter, Letter]):
    """Does what its letters say, and writes down everything."""

    made = 0

    def __init__(self, key: str, game: "Game") -> None:
        Player.made += 1
        self.number = Player.made
        self.key = key
        self.game = game

    async def alone(self, act: Callable[[], Awaitable[None]]) -> None:
        running = self.game.history.running
        running[self.key] += 1
        if running[self.key] != 1:
            self.game.history.wrong.append(f"{self.key}: two things at a time")
        try:
            await act()
        finally:
            running[self.key] -= 1

    async def receive(self, message: Letter) -> Letter:
        history = self.game.history
        history.note("begin", self.key, message, self.number)

        async def act() -> None:
            for step in message.steps:
                if step == "overrun":
                    # Whoever was cancelled through its scope has to return.
                    await self.game.overrun()
                    break
                await self.game.step(step)
            if message.crashes:
                message.crashes -= 1
                raise Fatal if "fatal" in message.steps else Boom

        try:
            await self.alone(act)
        except (Exception, trio.Cancelled) as error:
            if isinstance(error, Exception) or self.game.system.scope().cancel_called:
                history.note("crash", self.key, message, self.number)
            raise
        message.handled += 1
        return message

    async def on_start(self) -> None:
        await self.alone(self.game.pause)
        self.game.history.note("start", self.key, None, self.number)

    async def on_stop(self) -> None:
        await self.alone(self.game.pause)
        self.game.history.note("end", self.key, None, self.number)


class Stateless(Player):
    """A player whose end has no hook, so that it is dropped where it stands."""

    async def on_start(self) -> None:
        self.game.history.note("end", self.key, None, self.number)
        self.game.history.note("start", self.key, None, self.number)

    on_stop = Actor.on_stop


class Game:
    """One random world."""

    def __init__(self, seed: int, ending: Ending) -> None:
        self.rng = rng = random.Random(seed)
        # The end of the system ends every wait; until then one at a quarantined key may last.
        self.patience = 100 if ending is Ending.DRAINED else math.inf
        supervision = Supervision(
            directives={Fatal: Directive.STOP},
            failed_message=rng.choice(list(FailedMessage)),
            base=rng.choice([0.0, 0.0, 0.5]),
            max_restarts=rng.choice([0, 3, 50]),
        )
        self.history = History(supervision)
        self.keys = [f"key-{n}" for n in range(rng.randint(1, 5))]
        kind = rng.choice([Player, Player, Stateless])
        self.system: ActorSystem[str, Letter, Letter] = ActorSystem(
            lambda key: kind(key, self),
            mailbox_capacity=rng.choice([1, 2, 5, 100]),
            fairness=rng.choice([1, 2, 64]),
            supervision=supervision,
            idle_timeout=rng.choice([None, 0.3, 2.0]),
            max_workers=rng.choice([None, None, 1, 2]),
            on_dead_letter=self.bury,
        )

    def bury(self, letter: DeadLetter[str, Letter]) -> None:
        letter.message.dead += 1
        self.history.note("dead", letter.key, letter.message)

    def write(self, relay: bool = True) -> Letter:
        rng = self.rng
        steps = rng.choices(
            ["pass", "sleep", "nursery", "timeout", "overrun", "relay" if relay else "pass"],
            weights=[2, 2, 1, 1, 1, 1],
            k=rng.choice([0, 0, 1, 1, 2]),
        )
        crashes = rng.choice([0, 0, 0, 0, 0, 0, 0, 1, 1, 3])
        if crashes and rng.random() < 0.3:
            steps.append("fatal")
        letter = Letter(rng.choice(self.keys), crashes, steps)
        self.history.letters.append(letter)
        return letter

    async def pause(self) -> None:
        if self.rng.random() < 0.5:
            await trio.sleep(self.rng.choice([0, 0.1]))

    async def overrun(self) -> None:
        """Sleep, with a deadline on the handler's own scope that may be earlier."""
        scope = self.system.scope()
        scope.deadline = trio.current_time() + 0.1
        try:
            await trio.sleep(self.rng.choice([0.05, 0.2, 1.0]))
        except trio.Cancelled:
            if not scope.cancel_called or self.rng.random() < 0.2:
                raise
            if self.rng.random() < 0.5:
                self.system.renew_scope()

    async def step(self, step: str) -> None:
        match step:
            case "pass":
                await trio.lowlevel.checkpoint()
            case "sleep":
                await trio.sleep(self.rng.choice([0.05, 0.2, 1.0]))
            case "nursery":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.pause)
                    nursery.start_soon(self.pause)
            case "timeout":
                with trio.move_on_after(0.1):
                    await trio.sleep_forever()
            case "relay":
                self.tell_nowait(self.write(relay=False))

    def tell_nowait(self, letter: Letter) -> None:
        letter.called = self.history.tick()
        try:
            self.system.tell_nowait(letter.key, letter)
        except (MailboxFull, SystemClosed):
            letter.accepted = False
        else:
            letter.accepted = True
            letter.returned = self.history.tick()

    async def tell(self, letter: Letter) -> None:
        letter.called = self.history.tick()
        letter.accepted = False
        with trio.move_on_after(self.rng.choice([0, 0.1, 1, self.patience])):
            try:
                await self.system.tell(letter.key, letter)
            except SystemClosed:
                return
            letter.accepted = True
            letter.returned = self.history.tick()

    async def ask(self, letter: Letter) -> None:
        letter.called = self.history.tick()
        with trio.move_on_after(self.rng.choice([0.1, 1, self.patience, self.patience])):
            try:
                answer = await self.system.ask(letter.key, letter, self.rng.choice([None, 0.5]))
            except SystemClosed:
                letter.accepted = False
            except AskTimeout:
                pass
            except KeyQuarantined as error:
                letter.accepted = error.accepted
            except (ActorFailed, ActorStopped):
                letter.accepted = True
                if not letter.dead:
                    self.history.wrong.append(f"the asker was told of a failure: {letter}")
            else:
                letter.accepted = True
                letter.returned = self.history.tick()
                if answer is not letter or not letter.handled:
                    self.history.wrong.append(f"answered before it was handled: {letter}")

    async def client(self) -> None:
        rng = self.rng
        for _ in range(rng.randint(1, 15)):
            match rng.choices(
                ["tell_nowait", "tell", "ask", "stop", "release", "sleep", "drain"],
                weights=[6, 6, 4, 1, 1, 4, 0.3],
            )[0]:
                case "tell_nowait":
                    for _ in range(rng.choice([1, 3])):
                        self.tell_nowait(self.write())
                case "tell":
                    await self.tell(self.write())
                case "ask":
                    await self.ask(self.write())
                case "stop":
                    with trio.move_on_after(rng.choice([0.1, self.patience])):
                        await self.system.stop(rng.choice(self.keys))
                case "release":
                    self.system.release(rng.choice(self.keys))
                case "sleep":
                    await trio.sleep(rng.choice([0, 0.1, 0.4, 1.0]))
                case "drain":
                    with trio.move_on_after(1):
                        await self.system.drain()

    async def clients(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(self.rng.randint(1, 5)):
                nursery.start_soon(self.client)

    async def run(self, ending: Ending) -> None:
        with trio.move_on_after(FOREVER) as limit:
            await self.live(ending)
        if limit.cancelled_caught:
            self.history.wrong.append(f"stuck: {self.system.statistics()}")

    async def live(self, ending: Ending) -> None:
        async with trio.open_nursery() as nursery:
            try:
                with trio.CancelScope() as scope:
                    async with self.system:
                        if ending is Ending.DRAINED:
                            await self.clients()
                            return
                        nursery.start_soon(self.clients)
                        await trio.sleep(self.rng.choice([0, 0.1, 0.5, 1.5]))
                        if ending is Ending.FAILED:
                            raise Boom
                        if ending is Ending.CANCELLED:
                            scope.cancel()
            except Boom:
                assert ending is Ending.FAILED

    def check(self) -> list[str]:
        wrong = self.history.check()
        now = self.system.statistics()
        handled = sum(letter.handled for letter in self.history.letters)
        dead = sum(letter.dead for letter in self.history.letters)
        if (now.handled, now.dead_letters) != (handled, dead):
            wrong.append(f"{handled} handled and {dead} dead, but {now}")
        if any((now.keys, now.ready, now.running, now.queued, now.workers, now.backoff)):
            wrong.append(f"something is left: {now}")
        return wrong


def play(seed: int, ending: Ending) -> Game:
    """Play one world to its end."""
    game = Game(seed, ending)
    trio_run._r.seed(seed)
    with patch.object(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True):
        trio.run(game.run, ending, clock=MockClock(autojump_threshold=0))
    return game
