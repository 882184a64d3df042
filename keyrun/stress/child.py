"""The child: a process that runs planned runs on a store until all have ended, or it is killed.

It reads a summary of earlier processes from its standard input and continues their work: the next
submits of each key, cancels that were not answered, and pauses that were not resumed. It ends when
the process that started it ends.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import attrs
import cattrs
import trio

from keyrun import (
    Context,
    Limits,
    RunCancelled,
    RunFailed,
    RunHandle,
    RunOutcome,
    Runtime,
    State,
    Workflow,
    current_step,
    open_runtime,
    step,
    workflow,
)
from keyrun.storage import LmdbStore
from keyrun.stress.acting import Planner, perform, scene, turning
from keyrun.stress.evidence import Log, Mark
from keyrun.stress.plan import PlannedPause, PlannedRun, number_of

TICK = 0.1
NEVER = 1_000_000
"""The number of kills that may interrupt a step."""


@attrs.frozen(kw_only=True)
class Setup:
    """The instructions for one process. `planner` is the name of a class, and `options` are its
    arguments. `begun` has the number of acknowledged runs of each key. The process submits runs for
    `submit_for` seconds. At most `backlog` runs of a key wait, and at most `slots` steps run at
    once."""

    planner: str
    options: dict[str, Any]
    workflow: str
    folder: str
    life: int
    keys: int
    runs: int
    submit_for: float
    backlog: int = 4
    slots: int
    committer: str = "inline"
    control: bool = False
    begun: list[int]
    cancels: list[int]
    paused: list[PlannedPause]

    def encoded(self) -> bytes:
        """Return the instructions as one line of JSON."""
        return json.dumps(cattrs.unstructure(self)).encode() + b"\n"


@workflow(name="stress")
async def job(ctx: Context, number: int) -> int:
    """Run the stages of a planned run, one after the other."""
    return await perform(ctx, number)


@step
async def look() -> dict[str, int]:
    """Return the state of the key."""
    return dict(current_step().state)


@workflow(name="audit")
async def audit(ctx: Context) -> dict[str, int]:
    """Return the state of the key, as the last run of every key."""
    return await ctx.step(look)


def audit_id(key: str) -> str:
    """Return the id of the last run of a key."""
    return f"audit-{key}"


class Child:
    """Submits the runs of one process, and acts on them."""

    def __init__(self, setup: Setup, log: Log, target: Workflow[int, Any]) -> None:
        self._setup = setup
        self._log = log
        self._workflow = target
        self._refused: set[int] = set()
        self._owed: set[int] = set()
        """The runs for whose end the hook raised an error. The hook receives these ends again."""
        self._paid = trio.Event()
        self._done = False

    async def live(self) -> None:
        """Open the runtime, and do the rest of the work."""
        setup = self._setup
        store = LmdbStore(Path(setup.folder, "store"), committer=setup.committer)  # type: ignore[arg-type]
        async with open_runtime(
            store,
            workflows=[self._workflow, turning, audit],
            max_concurrent_steps=setup.slots,
            max_pending=max(8, setup.keys * setup.backlog * 3 // 4),
            max_pending_per_key=setup.backlog,
            backpressure_timeout=3600.0,
            limits=Limits(max_interruptions=NEVER),
            on_terminal=self._hook,
            control=setup.control,
        ) as runtime:
            self._log.write(Mark.READY)
            async with trio.open_nursery() as ticking:
                ticking.start_soon(self._tick, runtime)
                ticking.start_soon(self._obey, ticking.cancel_scope)
                async with trio.open_nursery() as nursery:
                    for number in setup.cancels:
                        nursery.start_soon(self._cancel, runtime, number, 0.0)
                    end = trio.current_time() + setup.submit_for
                    for key in range(setup.keys):
                        nursery.start_soon(self._submit, runtime, nursery, key, end)
                while self._owed:
                    self._paid = trio.Event()
                    await self._paid.wait()
                self._done = True
                ticking.cancel_scope.cancel()
        self._log.write(Mark.DONE if self._done else Mark.STOPPED)

    async def _obey(self, scope: trio.CancelScope) -> None:
        """Drain the runtime and leave when the parent asks."""
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                scope.cancel()

    async def _submit(self, runtime: Runtime, nursery: trio.Nursery, key: int, end: float) -> None:
        """Submit the runs of a key, one after the other, and look at its state after the last."""
        setup = self._setup
        for pause in setup.paused:
            if pause.number % setup.keys == key:
                await self._resume(runtime, pause)
        # The last one that was acknowledged once more: it must be known.
        ordinal = max(0, setup.begun[key] - 1)
        name = ""
        while (number := ordinal * setup.keys + key) < setup.runs:
            known = ordinal < setup.begun[key]
            if not known and trio.current_time() >= end:
                break
            ordinal += 1
            plan = scene.plan(number)
            name = plan.key
            limits = Limits(
                retry_budget=plan.retry_budget,
                max_iterations=plan.max_iterations or 10_000,
                run_timeout=plan.run_timeout,
            )
            if plan.delay:
                self._log.write(Mark.SUBMIT, number)
            run = await runtime.submit(
                turning if plan.machine else self._workflow,
                number,
                key=plan.key,
                run_id=plan.run_id,
                limits=limits,
                delay=plan.delay,
            )
            self._log.write(Mark.ACKNOWLEDGED, number, int(run.newly_submitted))
            if plan.awaited:
                nursery.start_soon(self._await, run, number)
            if not known:
                await self._disturb(runtime, nursery, plan)
            if plan.delay or plan.redriven:
                # It has its place later, so that the next one must wait to be behind it.
                await self._see_through(runtime, run, plan)
        if name:
            last = await runtime.submit(audit, key=name, run_id=audit_id(name))
            await last.result()

    async def _see_through(self, runtime: Runtime, run: RunHandle[Any], plan: PlannedRun) -> None:
        """Wait until a run has ended, and again if it is to be redriven."""
        with suppress(RunFailed, RunCancelled):
            await run.result()
        status = await run.status() if plan.redriven else None
        if status is not None and status.state is State.FAILED and status.generation == 1:
            self._log.write(Mark.REDRIVE, plan.number)
            await runtime.redrive(plan.run_id)
            with suppress(RunFailed):
                await run.result()

    async def _disturb(self, runtime: Runtime, nursery: trio.Nursery, plan: PlannedRun) -> None:
        if plan.cancel_after is not None:
            nursery.start_soon(self._cancel, runtime, plan.number, plan.cancel_after)
        if plan.pause is not None:
            await self._pause(runtime, plan.pause)

    async def _await(self, run: RunHandle[Any], number: int) -> None:
        state = "succeeded"
        try:
            await run.result()
        except RunFailed:
            state = "failed"
        except RunCancelled:
            state = "cancelled"
        self._log.write(Mark.RESULT, number, state)

    async def _cancel(self, runtime: Runtime, number: int, after: float) -> None:
        await trio.sleep(after)
        self._log.write(Mark.CANCEL, number)
        answer = await runtime.cancel(scene.plan(number).run_id)
        self._log.write(Mark.CANCELLED, number, int(answer))

    async def _pause(self, runtime: Runtime, pause: PlannedPause) -> None:
        plan, whole = scene.plan(pause.number), int(pause.whole_key)
        self._log.write(Mark.PAUSE, pause.number, whole)
        answer = True
        if pause.whole_key:
            await runtime.pause_key(plan.key)
        else:
            answer = await runtime.pause(plan.run_id)
        self._log.write(Mark.PAUSED, pause.number, whole, int(answer))
        await trio.sleep(pause.seconds)
        await self._resume(runtime, pause)

    async def _resume(self, runtime: Runtime, pause: PlannedPause) -> None:
        plan, whole = scene.plan(pause.number), int(pause.whole_key)
        self._log.write(Mark.RESUME, pause.number, whole)
        if pause.whole_key:
            await runtime.resume_key(plan.key)
        else:
            await runtime.resume(plan.run_id)
        self._log.write(Mark.RESUMED, pause.number, whole)

    async def _hook(self, outcome: RunOutcome) -> None:
        number = number_of(outcome.run_id)
        if number is None:
            return
        # In every other life, so that lives which are shorter than its backoff lead somewhere.
        refuses = self._setup.life % 2 and scene.plan(number).hook_refuses
        if refuses and number not in self._refused:
            self._refused.add(number)
            self._owed.add(number)
            raise RuntimeError("the hook refuses, as planned")
        self._log.write(Mark.HOOK, number, outcome.state, outcome.generation)
        self._owed.discard(number)
        self._paid.set()

    async def _tick(self, runtime: Runtime) -> None:
        while True:
            await trio.sleep(TICK)
            commits = runtime.statistics().commits
            self._log.write(Mark.COMMITS, commits.commits, commits.records)


def named(name: str) -> Any:
    """Return the object that `module:attribute` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def end_with(stream: Any) -> None:
    """End this process when the other end of `stream` is closed."""

    def watch() -> None:
        stream.read()
        os.kill(os.getpid(), signal.SIGKILL)

    Thread(target=watch, daemon=True).start()


def main() -> None:
    """Read the setup, and live."""
    setup = cattrs.structure(json.loads(sys.stdin.buffer.readline()), Setup)
    end_with(sys.stdin.buffer)
    logging.getLogger("keyrun").setLevel(logging.CRITICAL)
    make: Callable[..., Planner] = named(setup.planner)
    log = scene.log = Log(Path(setup.folder, "evidence.log"))
    scene.planner = make(**setup.options)
    log.write(Mark.LIFE, setup.life)
    trio.run(Child(setup, log, named(setup.workflow)).live)


if __name__ == "__main__":
    main()
