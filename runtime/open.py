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
from keyrun.runtime.events.logs import title
from keyrun.runtime.host.host import Host
from keyrun.runtime.limits import Limits
from keyrun.runtime.logger import logger
from keyrun.runtime.partition import Partition
from keyrun.runtime.queue.hook import Hook
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.recovery import startup
from keyrun.runtime.recovery.retention import Retention
from keyrun.runtime.runtime import Runtime
from keyrun.runtime.tuning import Tuning
from keyrun.runtime.unwinding import Unwind
from keyrun.storage import LmdbStore, Store, StoreError
from keyrun.storage.payload import PayloadCodec, Transform

if TYPE_CHECKING:
    from keyrun.runtime.policies.resources import Resources


OnUnregistered = Literal["hold", "refuse"]
Background = Iterable[Callable[[], Awaitable[None]]]
"""Tasks that run as long as a partition is open."""

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
    tuning: Tuning = Tuning(),  # noqa: B008 (frozen)
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
    raises `UnknownWorkflow` instead, before anything starts. `tuning` has the sizes of pages and
    windows; the defaults fit, and tests make them small."""
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
        host = Host(wall=wall, max_concurrent_steps=max_concurrent_steps, resources=resources)
        partition = Partition(
            store,
            host=host,
            registry=registry,
            namespace=namespace,
            limits=limits,
            hook=on_terminal,
            hook_timeout=hook_timeout,
            retention=retention,
            codec=PayloadCodec(transform),
            supervision=Supervision(max_restarts=max_restarts, window=restart_window),
            entities=entities,
            max_pending=max_pending,
            max_pending_per_key=max_pending_per_key,
            backpressure_timeout=backpressure_timeout,
            evict_after=evict_after,
            tuning=tuning,
        )
        try:
            async with serve(
                partition,
                drain_timeout=drain_timeout,
                on_unregistered=on_unregistered,
                background=host.background,
            ):
                yield Runtime(partition)
        finally:
            host.subscribers.close()


@asynccontextmanager
async def serve(
    partition: Partition,
    *,
    drain_timeout: float,
    on_unregistered: OnUnregistered,
    background: Background = (),
) -> AsyncIterator[None]:
    """Recover a partition, let its runs resume, and drain it when the block is left. `background`
    has further tasks that run as long as the partition is open."""
    state, host = partition.state, partition.state.host
    state.store.when_failed(partition.fail)
    state.commits.on_commit.append(state.unfinished.stage)
    state.commits.on_commit.append(host.transitions.look_at_level)
    try:
        await _begin(partition, on_unregistered)
    except BaseException:
        state.commits.on_commit.remove(state.unfinished.stage)
        state.commits.on_commit.remove(host.transitions.look_at_level)
        raise
    left: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(_run_work, partition, background)
                with partition.block:
                    yield
            except trio.Cancelled:
                raise
            except BaseException as error:
                # Raised outside of the nursery, so that it is itself and not in a group.
                left = error
            finally:
                with trio.CancelScope(shield=True) as partition.block, suppress(StoreError):
                    if state.failure is None:
                        await _drain(partition, drain_timeout)
                partition.scope.cancel()
                partition.close()
                nursery.start_soon(_report_user_code, partition)
    finally:
        if state.failure is None:
            mark = state.ledger.name("open")
            state.store.open_group().delete("counter", mark)
            state.keep_time()
            state.unfinished.stage(state.store.open_group())
        state.commits.on_commit.remove(state.unfinished.stage)
        state.commits.on_commit.remove(host.transitions.look_at_level)
    if state.failure is not None:
        raise state.failure
    if left is not None:
        raise left


async def _run_work(
    partition: Partition, background: Background, task_status: "trio.TaskStatus[None]"
) -> None:
    try:
        await _work(partition, background, task_status)
    except* StoreError as group:
        # A nursery of a workflow wraps the failure of the store together with what it cancelled.
        partition.fail(group)
    finally:
        partition.finished.set()


async def _work(
    partition: Partition, background: Background, task_status: "trio.TaskStatus[None]"
) -> None:
    """Run the actors and the background tasks of a partition until its scope is cancelled."""

    async def guard(task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except Exception as error:
            partition.fail(error)

    with partition.scope:
        async with partition.actors, trio.open_nursery() as nursery:

            def start(task: Callable[[], Awaitable[None]]) -> None:
                if not partition.scope.cancel_called:
                    nursery.start_soon(guard, task)

            partition.state.start = start
            start(
                lambda: startup.wake_keys(
                    partition.state, partition.queues, partition.damaged, partition.tuning
                )
            )
            start(partition.delays.run)
            start(partition.timers.run)
            start(partition.eviction.run)
            start(partition.children.run)
            start(partition.sweeper.run)
            start(partition.dispatcher.answers.run)
            start(partition.queues.gate.run)
            for task in background:
                start(task)
            if await partition.state.store.scan(
                "firings", prefix=partition.state.ledger.prefix, limit=1
            ):
                partition.schedules.begin()
            if partition.outbox.converting:
                start(lambda: _convert_outbox(partition))
            if partition.delivery is not None:
                start(partition.delivery.run)
            task_status.started()


async def _begin(partition: Partition, on_unregistered: OnUnregistered) -> None:
    ledger = partition.state.ledger
    await partition.state.read_counter()
    await partition.state.unfinished.recover()
    _check_registered(partition, on_unregistered)
    _warn_of_changes(partition)
    mark = ledger.name("open")
    partition.state.unclean = await partition.state.store.get("counter", mark) is not None
    partition.state.store.open_group().put("counter", mark, sealed("counter", mark, os.getpid()))
    for key, _ in await partition.state.store.scan("held", prefix=ledger.prefix):
        name = key[len(ledger.prefix) :].decode()
        if name:
            partition.queues.of(name).paused = True
        else:
            partition.state.paused = partition.state.stopped = True
    partition.state.has_key_state = bool(
        await partition.state.store.scan("state", prefix=ledger.prefix, limit=1)
    )
    partition.state.has_memos = bool(
        await partition.state.store.scan("memo", prefix=ledger.prefix, limit=1)
    )
    if any(each.kind == "graph" for each in partition.state.registry):
        from keyrun.runtime.inspect.execution_graphs import keep_plans

        await keep_plans(partition.state.ledger, partition.state.registry)
    if partition.instances is not None:
        await partition.instances.recover()
    await startup.note_interruptions(partition.state, partition.tuning)
    await partition.delays.recover()
    partition.timers.recover()
    await partition.signals.recover()
    await partition.children.recover()
    await _open_outbox(partition)
    await partition.state.store.durable()


def _check_registered(partition: Partition, on_unregistered: OnUnregistered) -> None:
    """Raise, or log once, which unfinished runs have a workflow that the runtime does not have."""
    missing = {
        version: runs
        for version, runs in sorted(partition.state.unfinished.by_version.items())
        if partition.state.registry.find(*version) is None
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


def _warn_of_changes(partition: Partition) -> None:
    """Log which unfinished runs were started by other code."""
    changed = partition.state.unfinished.of_other_code(partition.state.registry.fingerprint)
    for (name, version), runs in changed.items():
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


async def _open_outbox(partition: Partition) -> None:
    await partition.outbox.open(hook=partition.delivery is not None)
    if not partition.outbox.converting:
        _warn_of_waiting_outcomes(partition)


async def _convert_outbox(partition: Partition) -> None:
    await partition.outbox.convert()
    _warn_of_waiting_outcomes(partition)


def _warn_of_waiting_outcomes(partition: Partition) -> None:
    """Log how many ends wait for a hook that this runtime does not have."""
    outbox = partition.outbox
    if partition.delivery is None and (outbox.collecting or outbox.waiting):
        kept = "every further end is kept for it" if outbox.collecting else "no end is added"
        logger.warning(
            "%d ends of runs wait for on_terminal, this runtime has none, and %s; open the store "
            "with on_terminal to deliver them, or drop them and stop keeping ends with "
            "`await rt.discard_outcomes()` or `keyrun outbox STORE --discard`",
            outbox.waiting,
            kept,
            extra={"event": "outcomes_waiting"},
        )


async def _drain(partition: Partition, timeout: float) -> None:
    """Start nothing more, let running steps finish, then cancel what still runs."""
    partition.state.draining = partition.state.stopped = True
    partition.actors.hasten()
    partition.dispatcher.drain()
    for run in partition.runs.all_live():
        run.leave_if_asked()
        run.resume()
    patience = trio.current_time() + timeout
    with trio.move_on_at(patience):
        await partition.actors.drain()
    for run in partition.runs.all_live():
        run.unwind(Unwind.LEAVE)
    partition.dispatcher.cut_off()
    await _wait_for_user_code(partition)
    await partition.state.store.durable()
    if partition.delivery is not None:
        with trio.move_on_at(patience):
            await partition.delivery.tried()


async def _wait_for_user_code(partition: Partition) -> None:
    """Wait until all that was cancelled has ended. Only user code that cannot be stopped, such as
    the thread of a sync step, may take longer than `CUT_OFF`: it is waited for, so that its outcome
    is recorded. Anything else that is left ends with the engine's scope."""
    patience = CUT_OFF
    while True:
        with trio.move_on_after(patience):
            await partition.actors.drain()
            return
        running = _user_code(partition)
        if not running:
            logger.error("a drain of %g s did not end every run; the rest is cancelled", CUT_OFF)
            return
        _report(running)
        patience = REPORT_EVERY


async def _report_user_code(partition: Partition) -> None:
    """Report what keeps the block open, while something does after everything was cancelled."""
    with trio.CancelScope(shield=True):
        while not partition.finished.is_set():
            with trio.move_on_after(REPORT_EVERY):
                await partition.finished.wait()
                return
            _report(_user_code(partition) + _hook_calls(partition) or _workflow_code(partition))


def _user_code(partition: Partition) -> list[str]:
    """Return the steps and entity methods that still run."""
    steps = [
        f"step {current.step!r} of {title(*run.submission.about)}"
        for run in partition.runs
        for current in run.current.values()
    ]
    calls = [
        f"method {call.method.name!r} of {call.definition.name}"
        for call in partition.dispatcher.running
    ]
    return steps + calls


def _hook_calls(partition: Partition) -> list[str]:
    """Return the calls of the terminal hook that still run: in a thread, or shielded."""
    calls = () if partition.delivery is None else partition.delivery.calls
    return [f"on_terminal for {title(*call.about)}" for call in calls]


def _workflow_code(partition: Partition) -> list[str]:
    """Return the runs whose code is left: a shield of its own keeps it from being cancelled."""
    live = partition.runs.all_live()
    return [f"the workflow of {title(*run.submission.about)}" for run in live]


def _report(running: list[str]) -> None:
    named = ", ".join(running[:NAMED]) + (
        f" and {len(running) - NAMED} more" if running[NAMED:] else ""
    )
    logger.warning("the runtime was left and waits for code that cannot be stopped: %s", named)
