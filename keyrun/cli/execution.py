"""The execution of one run by the command line: submit it, tell how it goes, wait for its end.

A signal asks for a drain; a second one leaves at once, which costs no more than a crash would:
what is durable goes on the next time.
"""

import os
import signal
from collections.abc import Awaitable, Callable
from getpass import getuser
from pathlib import Path
from typing import Any

import attrs
import trio

from keyrun import (
    GateNotWaiting,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunHandle,
    RunQuarantined,
    Runtime,
    State,
    Workflow,
    open_reader,
    open_runtime,
)
from keyrun.cli.compensation import not_compensated
from keyrun.cli.exits import INTERRUPTED, USAGE, Refusal
from keyrun.cli.history import detail
from keyrun.cli.screen import say, visible
from keyrun.cli.times import duration, local
from keyrun.runtime.inspect.history import Happening

GLANCE = 0.2
"""Seconds between looks at how the run stands."""
PATIENCE = 1.0
"""Seconds for which a run may wait for its turn before it is said whom it waits for."""


@attrs.frozen(kw_only=True)
class Order:
    """What is to be run."""

    workflow: Workflow[Any, Any]
    known: tuple[Workflow[Any, Any], ...]
    input: Any
    key: str
    run_id: str | None
    tags: tuple[str, ...]
    headers: dict[str, str]
    namespace: str
    existing: bool
    """Is there a store already?"""
    quiet: bool
    again: Callable[[str], None]
    """Tells how a run that was interrupted goes on."""
    approve: tuple[str, ...] = ()
    """Gates at which it may pass."""


@attrs.define(kw_only=True)
class Ending:
    """How it came out; `state` is None if it was interrupted, and `run_id` if even before it was
    submitted."""

    run_id: str | None
    state: State | None = None
    result: Any = None
    reason: str = ""


async def execute(path: Path, order: Order) -> Ending:
    """Run it."""
    if order.existing:
        await _look_for_others(path, order)
    ending = Ending(run_id=order.run_id)
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            asked = trio.Event()
            nursery.start_soon(_obey, signals, asked, order, ending)
            async with open_runtime(
                path, workflows=order.known, namespace=order.namespace
            ) as runtime:
                await _follow(runtime, order, ending, asked)
            nursery.cancel_scope.cancel()
    return ending


async def _look_for_others(path: Path, order: Order) -> None:
    """Unfinished runs go on beside ours; but those whose code is not here would be quarantined."""
    async with open_reader(path, namespace=order.namespace) as reader:
        unfinished = await reader.unfinished()
        ours = None if order.run_id is None else await reader.status(order.run_id, result=False)
    here = {(workflow.name, workflow.version) for workflow in order.known}
    missing = [f"{name!r} version {version}" for name, version in unfinished.keys() - here]
    if missing:
        raise Refusal(
            f"{path} has unfinished runs of {', '.join(sorted(missing))}, and the code for them is "
            "not in this module; add the module that has it: --with MODULE",
            USAGE,
        )
    others = sum(unfinished.values())
    if ours is not None and not ours.state.terminal and ours.state is not State.QUARANTINED:
        others -= 1
    if others and not order.quiet:
        what = "1 other unfinished run" if others == 1 else f"{others} other unfinished runs"
        say(f"{what} of this store will go on meanwhile")


async def _obey(signals: Any, asked: trio.Event, order: Order, ending: Ending) -> None:
    async for _ in signals:
        if asked.is_set():
            if ending.run_id is not None:
                order.again(ending.run_id)
            os._exit(INTERRUPTED)
        asked.set()
        say("stopping: running steps may finish; once more stops at once")


async def _follow(runtime: Runtime, order: Order, ending: Ending, asked: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def until(wait: Callable[..., Awaitable[None]], *args: Any) -> None:
            await wait(*args)
            nursery.cancel_scope.cancel()

        nursery.start_soon(until, asked.wait)
        handle = await runtime.submit(
            order.workflow,
            order.input,
            key=order.key,
            run_id=order.run_id,
            tags=order.tags,
            headers=order.headers,
        )
        ending.run_id = handle.run_id
        teller = None if order.quiet else Teller(runtime, handle)
        if teller is not None:
            await teller.begin()
            nursery.start_soon(teller.run)
        for gate in order.approve:
            nursery.start_soon(_approve, runtime, handle.run_id, gate)
        nursery.start_soon(until, _end, handle, ending)
    if ending.state is not None and teller is not None:
        await teller.tell()


async def _approve(runtime: Runtime, run_id: str, gate: str) -> None:
    while True:
        try:
            await runtime.approve(run_id, gate, by=getuser(), comment="on the command line")
        except GateNotWaiting:
            await trio.sleep(GLANCE)
        except RunEnded:
            return
        else:
            say(f"approved at the gate {visible(gate)}")
            return


async def _end(handle: RunHandle[Any], ending: Ending) -> None:
    try:
        ending.result = await handle.result()
        ending.state = State.SUCCEEDED
    except RunFailed as error:
        ending.state, ending.reason = State.FAILED, error.failure.reason
        if error.failure.left:
            ending.reason += f"; not compensated: {not_compensated(error.failure)}"
    except RunCancelled as error:
        ending.state, ending.reason = State.CANCELLED, error.reason or ""
    except RunQuarantined as error:
        ending.state, ending.reason = State.QUARANTINED, error.reason


class Teller:
    """Tells on stderr what happens to a run."""

    def __init__(self, runtime: Runtime, handle: RunHandle[Any]) -> None:
        self._runtime = runtime
        self._handle = handle
        self._told: set[Happening] = set()

    async def begin(self) -> None:
        """Say which run this is. What happened in an earlier process was told there."""
        handle, before = self._handle, ""
        if not handle.newly_submitted:
            before = ", which was submitted before"
            self._told.update(await self._runtime.history(handle.run_id))
        say(f"run {handle.run_id} of key {visible(handle.key)}{before}")

    async def run(self) -> None:
        """For as long as it goes."""
        begun = trio.current_time()
        waits = False
        while True:
            started = trio.current_time()
            await self.tell()
            if not waits and started - begun > PATIENCE:
                waits = await self._tell_whom_it_waits_for()
            # A long story takes long to read: most of the time is for the run itself.
            await trio.sleep(max(GLANCE, 10 * (trio.current_time() - started)))

    async def tell(self) -> None:
        """What is new."""
        for happened in await self._runtime.history(self._handle.run_id):
            if happened not in self._told and happened.event != "submitted":
                say(sentence(happened))
            self._told.add(happened)

    async def _tell_whom_it_waits_for(self) -> bool:
        for key in await self._runtime.keys(key=self._handle.key):
            if key.head not in ("", self._handle.run_id):
                held = ", and the key is paused" if key.paused else ""
                say(f"it waits for {key.head} of the same key, which is {key.state}{held}")
        return True


def sentence(happened: Happening) -> str:
    """One line about one thing."""
    words = [local(happened.at), happened.event.replace("_", " ")]
    if happened.step:
        words.append(happened.step)
    if happened.attempt and happened.attempt > 1:
        words.append(f"(attempt {happened.attempt})")
    if happened.began_at is not None:
        words.append(f"in {duration(happened.at - happened.began_at)}")
    more = detail(happened)
    return visible(" ".join(words) + (f": {more}" if more else ""))
