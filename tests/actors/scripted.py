"""An actor that does what its messages say, and a world that writes down what happened."""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from keyrun.actors import Actor, ActorSystem, DeadLetter, Directive, FailedMessage, Supervision

Act = Callable[[], Awaitable[Any]]


class Boom(Exception):
    """What a scripted actor raises when it is told to."""


class Fatal(Exception):
    """What a scripted actor raises when it is to be stopped."""


AT_ONCE = Supervision(base=0.0, directives={Fatal: Directive.STOP})
GIVE_UP = attrs.evolve(AT_ONCE, failed_message=FailedMessage.DEAD_LETTER)
QUARANTINE = attrs.evolve(AT_ONCE, max_restarts=0)


async def boom() -> None:
    raise Boom


async def fatal() -> None:
    raise Fatal


def sleeping(seconds: float) -> Act:
    """A message that keeps its handler waiting for a while."""

    async def sleep() -> None:
        await trio.sleep(seconds)

    return sleep


@attrs.define
class World:
    """The log of everything that scripted actors did, in order, and the dead letters."""

    log: list[Any] = attrs.Factory(list)
    letters: list[DeadLetter[str, Any]] = attrs.Factory(list)
    made: int = 0

    def factory(self, key: str) -> "Scripted":
        self.made += 1
        return Scripted(key, self)

    def system(
        self, kind: "type[Scripted] | None" = None, **options: Any
    ) -> ActorSystem[str, Any, Any]:
        """A system of actors of this kind, by default of ones without hooks."""

        def factory(key: str) -> Scripted:
            self.made += 1
            return (kind or Scripted)(key, self)

        return ActorSystem(factory, on_dead_letter=self.letters.append, **options)

    def attentive_system(self, **options: Any) -> ActorSystem[str, Any, Any]:
        """A system of actors that write down each hook."""
        return self.system(Attentive, **options)

    def dead(self) -> list[Any]:
        return [letter.message for letter in self.letters]


class Scripted(Actor[Any, Any]):
    """Performs a message that is a function, writes down and returns any other."""

    def __init__(self, key: str, world: World) -> None:
        self.key = key
        self.world = world

    async def receive(self, message: Any) -> Any:
        if callable(message):
            return await message()
        self.world.log.append(message)
        return message


class Attentive(Scripted):
    """Writes down its hooks as well."""

    async def on_start(self) -> None:
        self.world.log.append("start")

    async def on_restart(self, error: BaseException) -> None:
        self.world.log.append(f"restart after {type(error).__name__}")

    async def on_stop(self) -> None:
        self.world.log.append("stop")

    async def on_passivate(self) -> None:
        self.world.log.append("passivate")


class Gate:
    """A message that keeps its handler waiting until the test opens the gate."""

    def __init__(self) -> None:
        self.entered = trio.Event()
        self.opened = trio.Event()

    async def __call__(self) -> str:
        self.entered.set()
        await self.opened.wait()
        return "through"
