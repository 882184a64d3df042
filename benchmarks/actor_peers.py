"""Ways to give every key an actor: Keyrun's, and the ones it is held against.

A design opens its event loop, makes an actor per key on demand and lets `work` talk to them. The
peers are bare, without capacity, fairness or supervision: that makes them limits.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from importlib import import_module
from threading import Lock
from typing import Any, Protocol, TypeAlias, TypeVar

import attrs
import trio

from keyrun.actors import Actor, ActorSystem, FailedMessage, Supervision

# It is there for benchmarks only, so the type checker must do without.
pykka: Any = import_module("pykka")

T = TypeVar("T")
Key: TypeAlias = int | str
Factory: TypeAlias = Callable[[Key], Actor[Any, Any]]
Tell: TypeAlias = Callable[[Key, Any], object]
Ask: TypeAlias = Callable[[Key, Any], Awaitable[Any]]

PYKKA_PAUSE = 0.001
"""Seconds for the threads to get on with it. The loop must not compete with them meanwhile."""


@attrs.frozen(kw_only=True)
class Host:
    """What `work` may do with the actors and with the loop that they live in."""

    tell: Tell
    ask: Ask
    pause: Callable[[], Awaitable[object]]
    sleep: Callable[[float], Awaitable[object]]
    spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], object]


Work: TypeAlias = Callable[[Host], Coroutine[Any, Any, T]]


class Design(Protocol):
    """Hosts the actors that `factory` makes, and returns what `work` returns."""

    def __call__(self, factory: Factory, work: Work[T]) -> T: ...


@attrs.define
class Question:
    """A message with a place for its answer, for designs that have no `ask` of their own."""

    message: Any
    event: trio.Event | asyncio.Event
    answer: Any = None


async def _ask(tell: Tell, event: type[trio.Event | asyncio.Event], key: Key, message: Any) -> Any:
    question = Question(message, event())
    tell(key, question)
    await question.event.wait()
    return question.answer


def keyrun(factory: Factory, work: Work[T]) -> T:
    """Keyrun with its defaults, except that crashed actors are restarted at once."""
    supervision = Supervision(base=0, failed_message=FailedMessage.DEAD_LETTER)

    async def main() -> T:
        system = ActorSystem[Key, Any, Any](
            factory, supervision=supervision, on_dead_letter=lambda _: None
        )
        async with trio.open_nursery() as nursery:
            async with system:
                result = await work(_trio_host(nursery, system.tell_nowait, system.ask))
            nursery.cancel_scope.cancel()
        return result

    return trio.run(main)


@attrs.define(eq=False)
class _Parked:
    """The mailbox of a persistent task, and the task itself while it waits for a message."""

    mailbox: deque[Any] = attrs.Factory(deque)
    task: trio.lowlevel.Task | None = None


def persistent_task(factory: Factory, work: Work[T]) -> T:
    """A Trio task per key that parks beside its deque: the leanest way to own a task."""

    async def serve(key: Key, own: _Parked) -> None:
        task = trio.lowlevel.current_task()
        mailbox = own.mailbox
        actor = factory(key)
        while True:
            while mailbox:
                try:
                    await actor.receive(mailbox.popleft())
                except ValueError:
                    actor = factory(key)
            own.task = task
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.SUCCEEDED)

    def teller(nursery: trio.Nursery) -> Tell:
        parked: dict[Key, _Parked] = {}

        def tell(key: Key, message: Any) -> None:
            own = parked.get(key)
            if own is None:
                own = parked[key] = _Parked()
                nursery.start_soon(serve, key, own)
            own.mailbox.append(message)
            if own.task is not None:
                trio.lowlevel.reschedule(own.task)
                own.task = None

        return tell

    return trio.run(_beside_tasks, teller, work)


def memory_channel(factory: Factory, work: Work[T]) -> T:
    """A Trio task per key that iterates over a memory channel."""

    async def serve(key: Key, messages: trio.MemoryReceiveChannel[Any]) -> None:
        actor = factory(key)
        async for message in messages:
            await actor.receive(message)

    def teller(nursery: trio.Nursery) -> Tell:
        channels: dict[Key, trio.MemorySendChannel[Any]] = {}

        def tell(key: Key, message: Any) -> None:
            channel = channels.get(key)
            if channel is None:
                channel, messages = trio.open_memory_channel[Any](math.inf)
                channels[key] = channel
                nursery.start_soon(serve, key, messages)
            channel.send_nowait(message)

        return tell

    return trio.run(_beside_tasks, teller, work)


def asyncio_queue(factory: Factory, work: Work[T]) -> T:
    """An asyncio task per key that gets from an asyncio.Queue."""

    async def serve(key: Key, queue: asyncio.Queue[Any]) -> None:
        actor = factory(key)
        while True:
            await actor.receive(await queue.get())

    async def main() -> T:
        queues: dict[Key, asyncio.Queue[Any]] = {}
        tasks: list[asyncio.Task[None]] = []

        def spawn(function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
            tasks.append(asyncio.create_task(function(*args)))

        def tell(key: Key, message: Any) -> None:
            queue = queues.get(key)
            if queue is None:
                queue = queues[key] = asyncio.Queue()
                spawn(serve, key, queue)
            queue.put_nowait(message)

        ask = partial(_ask, tell, asyncio.Event)
        pause = partial(asyncio.sleep, 0)
        host = Host(tell=tell, ask=ask, pause=pause, sleep=asyncio.sleep, spawn=spawn)
        result = await work(host)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return result

    return asyncio.run(main())


def pykka_threads(factory: Factory, work: Work[T]) -> T:
    """A pykka actor, and with it a thread, per key."""
    # The actors count together, which is not atomic; beside a change of threads it is cheap.
    lock = Lock()

    class Threaded(pykka.ThreadingActor):  # type: ignore[misc]
        def __init__(self, key: Key) -> None:
            super().__init__()
            self.actor = factory(key)

        def on_receive(self, message: Any) -> Any:
            try:
                with lock:
                    self.actor.receive(message).send(None)
            except StopIteration as stop:
                return stop.value
            raise AssertionError("the handler waits, and a thread has no loop to wait in")

    references: dict[Key, Any] = {}

    def find(key: Key) -> Any:
        if key not in references:
            references[key] = Threaded.start(key)
        return references[key]

    async def ask(key: Key, message: Any) -> Any:
        return find(key).ask(message)

    async def main() -> T:
        async with trio.open_nursery() as nursery:
            host = _trio_host(nursery, lambda key, message: find(key).tell(message), ask)
            return await work(attrs.evolve(host, pause=partial(trio.sleep, PYKKA_PAUSE)))

    try:
        return trio.run(main)
    finally:
        pykka.ActorRegistry.stop_all()


async def _beside_tasks(teller: Callable[[trio.Nursery], Tell], work: Work[T]) -> T:
    async with trio.open_nursery() as nursery:
        tell = teller(nursery)
        result = await work(_trio_host(nursery, tell, partial(_ask, tell, trio.Event)))
        nursery.cancel_scope.cancel()
    return result


def _trio_host(nursery: trio.Nursery, tell: Tell, ask: Ask) -> Host:
    return Host(
        tell=tell,
        ask=ask,
        pause=trio.lowlevel.checkpoint,
        sleep=trio.sleep,
        spawn=nursery.start_soon,
    )
