"""Opening: how a runtime begins on a store, what goes on in it by itself, and how it drains."""

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, get_args

import trio

from keyrun.actors import Supervision, checks
from keyrun.runtime.definitions.workflow import Registry, Workflow
from keyrun.runtime.errors import UnknownWorkflow
from keyrun.runtime.events.logs import logger, title
from keyrun.runtime.events.transition_log import TransitionLog
from keyrun.runtime.limits import Limits
from keyrun.runtime.partition import Engine
from keyrun.runtime.queue.hook import Hook
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.recovery import startup
from keyrun.runtime.recovery.retention import Retention
from keyrun.runtime.runtime import Runtime
from keyrun.runtime.unwinding import Unwind
from keyrun.storage import LmdbStore, Store, StoreError
from keyrun.storage.payload import PayloadCodec, Transform

if TYPE_CHECKING:
    from keyrun.runtime.policies.resources import Resources


OnUnregistered = Literal["hold", "refuse"]

CUT_OFF = 5.0
"""Seconds in which everything has to end that is cancelled at the end of a drain."""
REPORT_EVERY = 10.0
"""Seconds between two log lines that name the user code that a drain waits for."""
NAMED = 3
"""How many steps such a line names."""


def _check(name: str, value: float, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")


@asynccontextmanager
async def open_runtime(
    store: "str | os.PathLike[str] | Store",
    *,
    workflows: Iterable[Workflow[Any, Any]] = (),
    entities: Iterable[type] = (),
    namespace: str = "default",
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    max_concurrent_steps: int = 256,
    max_pending: int = 100_000,
    max_pending_per_key: int = 10_000,
    backpressure_timeout: float = 30.0,
    drain_timeout: float = 10.0,
    on_terminal: Hook | None = None,
    hook_timeout: float = 60.0,
    retention: Retention = Retention(),  # noqa: B008 (frozen)
    on_unregistered: OnUnregistered = "hold",
    transform: Transform | None = None,
    wall: Callable[[], float] = time.time,
    max_restarts: int = 5,
    restart_window: float = 60.0,
    resources: "Resources | None" = None,
    evict_after: float = 1.0,
) -> AsyncIterator[Runtime]:
    """Open a runtime on a store: a path, or a `Store`. What an earlier process left unfinished goes
    on by itself. Leaving the block drains: no step is started any more, running ones have
    `drain_timeout` seconds, and what is unfinished goes on at the next open. `on_terminal`
    is called at least once for every end; a sync function runs in a thread. An async one that does
    not return within `hook_timeout` seconds is cancelled and called again later. A key that
    fails to be served, again after `max_restarts` restarts within `restart_window` seconds, is
    quarantined. A run that waits for `evict_after` seconds leaves memory until there is something
    to do. If the store has unfinished runs of workflows or versions that are not in `workflows`,
    they are quarantined and one warning counts them; with `on_unregistered="refuse"` the open
    raises `UnknownWorkflow` instead, before anything starts."""
    _check("max_concurrent_steps", max_concurrent_steps, 1)
    _check("max_pending", max_pending, 1)
    _check("max_pending_per_key", max_pending_per_key, 1)
    _check("backpressure_timeout", backpressure_timeout, 0)
    _check("drain_timeout", drain_timeout, 0)
    _check("evict_after", evict_after, 0)
    checks.count("max_restarts", max_restarts, 0)
    checks.positive("restart_window", restart_window)
    checks.positive("hook_timeout", hook_timeout)
    if on_unregistered not in get_args(OnUnregistered):
        raise ValueError(f"on_unregistered must be 'hold' or 'refuse', got {on_unregistered!r}")
    if not isinstance(store, Store):
        store = LmdbStore(store)
    registry = Registry(workflows, resources)
    async with store, store.claim(namespace):
        engine = Engine(
            store,
            registry=registry,
            namespace=namespace,
            limits=limits,
            max_concurrent_steps=max_concurrent_steps,
            max_pending=max_pending,
            max_pending_per_key=max_pending_per_key,
            backpressure_timeout=backpressure_timeout,
            hook=on_terminal,
            hook_timeout=hook_timeout,
            retention=retention,
            codec=PayloadCodec(transform),
            wall=wall,
            supervision=Supervision(max_restarts=max_restarts, window=restart_window),
            resources=resources,
            evict_after=evict_after,
            entities=entities,
        )
        store.when_failed(engine.fail)
        engine.commits.on_commit.append(engine.unfinished.stage)
        transitions = TransitionLog(engine.listeners)
        engine.commits.on_commit.append(transitions.look_at_level)
        try:
            await _begin(engine, on_unregistered)
        except BaseException:
            engine.commits.on_commit.remove(engine.unfinished.stage)
            engine.commits.on_commit.remove(transitions.look_at_level)
            raise
        left: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                try:
                    await nursery.start(_run_work, engine)
                    with engine.block:
                        yield Runtime(engine)
                except trio.Cancelled:
                    raise
                except BaseException as error:
                    # Raised outside of the nursery, so that it is itself and not in a group.
                    left = error
                finally:
                    with trio.CancelScope(shield=True) as engine.block, suppress(StoreError):
                        if engine.failure is None:
                            await _drain(engine, drain_timeout)
                    engine.scope.cancel()
                    engine.close()
                    nursery.start_soon(_report_user_code, engine)
        finally:
            if engine.failure is None:
                mark = engine.ledger.name("open")
                engine.store.open_group().delete("counter", mark)
                engine.keep_time()
                engine.unfinished.stage(engine.store.open_group())
            engine.commits.on_commit.remove(engine.unfinished.stage)
            engine.commits.on_commit.remove(transitions.look_at_level)
        if engine.failure is not None:
            raise engine.failure
        if left is not None:
            raise left


async def _run_work(engine: Engine, task_status: "trio.TaskStatus[None]") -> None:
    try:
        await _work(engine, task_status)
    except* StoreError as group:
        # A nursery of a workflow wraps the failure of the store together with what it cancelled.
        engine.fail(group)
    finally:
        engine.finished.set()


async def _work(engine: Engine, task_status: "trio.TaskStatus[None]") -> None:
    """All that goes on by itself, until the engine's scope is cancelled."""

    async def guard(task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except Exception as error:
            engine.fail(error)

    with engine.scope:
        async with engine.actors, trio.open_nursery() as nursery:

            def start(task: Callable[[], Awaitable[None]]) -> None:
                if not engine.scope.cancel_called:
                    nursery.start_soon(guard, task)

            engine.start = start
            start(lambda: startup.wake_lines(engine))
            start(engine.delays.run)
            start(engine.timers.run)
            start(engine.parking.run)
            start(engine.children.run)
            start(engine.sweeper.run)
            start(engine.reception.requests.run)
            start(engine.entrance.run)
            start(engine.asyncio.run)
            start(engine.overruns.run)
            if await engine.store.scan("firings", prefix=engine.ledger.prefix, limit=1):
                engine.schedules.begin()
            if engine.outbox.converting:
                start(lambda: _convert_outbox(engine))
            if engine.delivery is not None:
                start(engine.delivery.run)
            task_status.started()


async def _begin(engine: Engine, on_unregistered: OnUnregistered) -> None:
    ledger = engine.ledger
    await engine.read_counter()
    await engine.unfinished.recover()
    _check_registered(engine, on_unregistered)
    _warn_of_changes(engine)
    mark = ledger.name("open")
    engine.unclean = await engine.store.get("counter", mark) is not None
    engine.store.open_group().put("counter", mark, sealed("counter", mark, os.getpid()))
    for key, _ in await engine.store.scan("held", prefix=ledger.prefix):
        name = key[len(ledger.prefix) :].decode()
        if name:
            engine.line(name).paused = True
        else:
            engine.paused = engine.stopped = True
    engine.stateless = not await engine.store.scan("state", prefix=ledger.prefix, limit=1)
    engine.memoless = not await engine.store.scan("memo", prefix=ledger.prefix, limit=1)
    if any(each.kind == "graph" for each in engine.registry):
        from keyrun.runtime.inspect.execution_graphs import keep_plans

        await keep_plans(engine.ledger, engine.registry)
    if engine.instances is not None:
        await engine.instances.recover()
    await startup.note_interruptions(engine)
    await engine.delays.recover()
    engine.timers.recover()
    await engine.signals.recover()
    await engine.children.recover()
    await _open_outbox(engine)
    await engine.store.durable()


def _check_registered(engine: Engine, on_unregistered: OnUnregistered) -> None:
    """Raise, or log once, which unfinished runs have a workflow that the runtime does not have."""
    missing = {
        version: runs
        for version, runs in sorted(engine.unfinished.by_version.items())
        if engine.registry.find(*version) is None
    }
    if not missing:
        return
    counts = ", ".join(
        f"{name!r} version {version} ({runs} {'run' if runs == 1 else 'runs'})"
        for (name, version), runs in missing.items()
    )
    said = f"the store has unfinished runs of workflows that this runtime does not have: {counts}"
    if on_unregistered == "refuse":
        raise UnknownWorkflow(
            f"{said}; give these workflows to open_runtime(workflows=[...]), or hold their runs "
            "with on_unregistered='hold'",
            counts=missing,
        )
    logger.warning(
        "%s; these runs hold their keys until an open has the workflows",
        said,
        extra={"event": "unregistered_workflows", "runs": sum(missing.values())},
    )


def _warn_of_changes(engine: Engine) -> None:
    """Log which unfinished runs were started by other code."""
    for (name, version), runs in engine.unfinished.of_other_code(engine.registry).items():
        were = "run was" if runs == 1 else "runs were"
        logger.warning(
            "the code of workflow %r version %d has changed: %d unfinished %s started by other "
            "code; check with keyrun.testing.replay that the changed code fits, or register it "
            "as a new version",
            name,
            version,
            runs,
            were,
            extra={"event": "code_changed", "workflow": name, "version": version, "runs": runs},
        )


async def _open_outbox(engine: Engine) -> None:
    await engine.outbox.open(hook=engine.delivery is not None)
    if not engine.outbox.converting:
        _warn_of_waiting_outcomes(engine)


async def _convert_outbox(engine: Engine) -> None:
    await engine.outbox.convert()
    _warn_of_waiting_outcomes(engine)


def _warn_of_waiting_outcomes(engine: Engine) -> None:
    """Log how many ends wait for a hook that this runtime does not have."""
    outbox = engine.outbox
    if engine.delivery is None and (outbox.collecting or outbox.waiting):
        kept = "every further end is kept for it" if outbox.collecting else "no end is added"
        logger.warning(
            "%d ends of runs wait for on_terminal, this runtime has none, and %s; open the store "
            "with on_terminal to deliver them, or drop them and stop keeping ends with "
            "`await rt.discard_outcomes()` or `keyrun outbox STORE --discard`",
            outbox.waiting,
            kept,
            extra={"event": "outcomes_waiting"},
        )


async def _drain(engine: Engine, timeout: float) -> None:
    """Start nothing more, let running steps finish, then cancel what still runs."""
    engine.draining = engine.stopped = True
    engine.actors.hasten()
    engine.reception.drain()
    for run in engine.runs.all_live():
        run.leave_if_asked()
        run.resume()
    patience = trio.current_time() + timeout
    with trio.move_on_at(patience):
        await engine.actors.drain()
    for run in engine.runs.all_live():
        run.unwind(Unwind.LEAVE)
    engine.reception.cut_off()
    await _wait_for_user_code(engine)
    await engine.store.durable()
    if engine.delivery is not None:
        with trio.move_on_at(patience):
            await engine.delivery.tried()


async def _wait_for_user_code(engine: Engine) -> None:
    """Wait until all that was cancelled has ended. Only user code that cannot be stopped, such as
    the thread of a sync step, may take longer than `CUT_OFF`: it is waited for, so that its outcome
    is recorded. Anything else that is left ends with the engine's scope."""
    patience = CUT_OFF
    while True:
        with trio.move_on_after(patience):
            await engine.actors.drain()
            return
        running = _user_code(engine)
        if not running:
            logger.error("a drain of %g s did not end every run; the rest is cancelled", CUT_OFF)
            return
        _report(running)
        patience = REPORT_EVERY


async def _report_user_code(engine: Engine) -> None:
    """Report what keeps the block open, while something does after everything was cancelled."""
    with trio.CancelScope(shield=True):
        while not engine.finished.is_set():
            with trio.move_on_after(REPORT_EVERY):
                await engine.finished.wait()
                return
            _report(_user_code(engine) + _hook_calls(engine) or _workflow_code(engine))


def _user_code(engine: Engine) -> list[str]:
    """Return the steps and entity methods that still run."""
    steps = [
        f"step {current.step!r} of {title(*run.submission.about)}"
        for run in engine.runs
        for current in run.current.values()
    ]
    calls = [
        f"method {call.method.name!r} of {call.kind.name}" for call in engine.reception.running
    ]
    return steps + calls


def _hook_calls(engine: Engine) -> list[str]:
    """Return the calls of the terminal hook that still run: in a thread, or shielded."""
    calls = () if engine.delivery is None else engine.delivery.calls
    return [f"on_terminal for {title(*call.about)}" for call in calls]


def _workflow_code(engine: Engine) -> list[str]:
    """Return the runs whose code is left: a shield of its own keeps it from being cancelled."""
    live = engine.runs.all_live()
    return [f"the workflow of {title(*run.submission.about)}" for run in live]


def _report(running: list[str]) -> None:
    named = ", ".join(running[:NAMED]) + (
        f" and {len(running) - NAMED} more" if running[NAMED:] else ""
    )
    logger.warning("the runtime was left and waits for code that cannot be stopped: %s", named)
