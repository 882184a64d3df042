"""Keyrun with its defaults, but for how many steps may run at a time in W4. Each run has a key of
its own. A message is the call of an entity, or where it says so a run of one step."""

import os
from collections.abc import Awaitable, Callable
from time import perf_counter

import trio

from benchmarks.peers.programs.evidence import Inbox, Steps
from benchmarks.peers.programs.gauge import disk, family, memory
from benchmarks.peers.programs.order import Order
from benchmarks.peers.programs.pace import Pace
from benchmarks.peers.programs.stage import Facts, perform_in, tell
from benchmarks.workload import three_steps
from keyrun import (
    Context,
    Entity,
    RunHandle,
    State,
    current_step,
    entity,
    open_runtime,
    step,
    workflow,
)

steps = Steps()
inbox = Inbox()
asleep: list[str] = []


@step
async def first() -> None:
    """Finished before the kill."""
    steps.mark("first")


@step
async def second() -> None:
    """Blocks until the kill, and returns at once after it."""
    steps.mark("second")
    if steps.blocking:
        await trio.sleep_forever()


@step
async def third() -> None:
    """Only after the restart."""
    steps.mark("third")


@workflow
async def job(ctx: Context) -> None:
    """What is killed in its middle."""
    await ctx.step(first)
    await ctx.step(second)
    await ctx.step(third)


@step
async def take(number: int) -> None:
    """Handle a message, and remember in the state of its key that it was the last."""
    current = current_step()
    current.state["last"] = number
    inbox.take(current.key, number)


@entity
class Recipient(Entity):
    """What is called with messages, under a key."""

    async def take(self, number: int) -> None:
        """Handle a message, and remember that it was the last."""
        self.state["last"] = number
        inbox.take(self.key, number)


@workflow
async def message(ctx: Context, number: int) -> None:
    """One message."""
    await ctx.step(take, number)


@workflow
async def sleeper(ctx: Context) -> None:
    """What sleeps for longer than anybody looks."""
    asleep.append(ctx.run_id)
    await ctx.sleep(3600)


async def at_a_time(total: int, at_once: int, one: Callable[[int], Awaitable[object]]) -> None:
    """Call `one` with each number, `at_once` at a time, each client's in rising order."""

    async def client(start: int) -> None:
        for number in range(start, total, at_once):
            await one(number)

    async with trio.open_nursery() as nursery:
        for start in range(min(at_once, total)):
            nursery.start_soon(client, start)


async def runs(order: Order) -> Facts:
    """A closed loop of runs of three steps."""
    async with open_runtime(order.folder, workflows=[three_steps]) as runtime:
        before, pace = disk(order.folder), Pace(order)

        async def client(number: int) -> None:
            while pace.going():
                started = perf_counter()
                run = await runtime.submit(three_steps, key=f"key-{number}")
                await run.result()
                pace.ran(started)

        async with trio.open_nursery() as nursery:
            for number in range(order.at_once):
                nursery.start_soon(client, number)
    return pace.facts() | {"bytes_per_run": (disk(order.folder) - before) / pace.total}


async def messages(order: Order) -> Facts:
    """So many messages to so many keys, each sent when the one before it was handled, durably."""
    inbox.expect(order.keys, order.messages)
    async with open_runtime(order.folder, entities=[Recipient]) as runtime:

        async def send(key: int) -> None:
            recipient = runtime.entity(Recipient, f"key-{key}")
            for number in range(order.messages):
                await recipient.take(number)

        started = perf_counter()
        await at_a_time(order.keys, order.at_once, send)
        seconds = perf_counter() - started
    return {"messages_per_second": inbox.expected / seconds, "disordered": inbox.disordered()}


async def message_runs(order: Order) -> Facts:
    """The same with a run for each message, sent when the one before it is durable."""
    inbox.expect(order.keys, order.messages)
    handles: list[RunHandle[None]] = []
    async with open_runtime(order.folder, workflows=[message]) as runtime:

        async def send(key: int) -> None:
            for number in range(order.messages):
                handles.append(await runtime.submit(message, number, key=f"key-{key}"))

        started = perf_counter()
        await at_a_time(order.keys, order.at_once, send)
        for handle in handles:
            await handle.result()
        seconds = perf_counter() - started
    return {"messages_per_second": inbox.expected / seconds, "disordered": inbox.disordered()}


async def fill(order: Order) -> Facts:
    """Bring runs into their second step, where the process is killed."""
    steps.blocking = True
    async with open_runtime(
        order.folder, workflows=[job], max_concurrent_steps=order.runs
    ) as runtime:

        async def submit(number: int) -> None:
            await runtime.submit(job, key=f"key-{number}")

        await at_a_time(order.runs, order.at_once, submit)
        while steps.count("second") < order.runs:
            await trio.sleep(0.01)
        tell(ready=True)
        await trio.sleep_forever()


async def resume(order: Order) -> Facts:
    """Finish what was killed: opening the store is all that it takes."""
    async with open_runtime(
        order.folder, workflows=[job], max_concurrent_steps=order.runs
    ) as runtime:
        while steps.count("third") < order.runs:
            await trio.sleep(0.001)
        finished = 0
        while finished < order.runs:
            await trio.sleep(0.001)
            finished = len(await runtime.runs(state=State.SUCCEEDED, limit=order.runs))
        return {"finished": finished, "again": steps.count("first")}


async def sleep(order: Order) -> Facts:
    """Put runs to sleep, and weigh the process."""
    async with open_runtime(order.folder, workflows=[sleeper]) as runtime:
        before = memory(family(os.getpid()))

        async def submit(number: int) -> None:
            await runtime.submit(sleeper, key=f"key-{number}")

        await at_a_time(order.runs, order.at_once, submit)
        while len(asleep) < order.runs:
            await trio.sleep(0.01)
        await trio.sleep(order.seconds)
        return {"asleep": order.runs, "before": before, "memory": memory(family(os.getpid()))}


if __name__ == "__main__":
    perform_in(trio.run, runs, messages, message_runs, fill, resume, sleep)
