"""Opening: start a runtime on a store, run its background tasks, and drain it."""

import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from math import inf
from typing import TYPE_CHECKING, Any

import trio

from keyrun.actors import Supervision, checks
from keyrun.runtime.definitions.workflow import Registry, Workflow
from keyrun.runtime.errors import MissingExtra, UnknownWorkflow
from keyrun.runtime.events.logs import title
from keyrun.runtime.faces.current import Faces
from keyrun.runtime.host.asyncio_loop import AsyncioLoop
from keyrun.runtime.host.host import Host
from keyrun.runtime.host.lifespan import (
    ON_TRIO,
    ON_TRIO_ASYNCIO,
    Lifespan,
    async_manager_of,
    enter,
    is_for_asyncio,
)
from keyrun.runtime.limits import Limits
from keyrun.runtime.logger import logger
from keyrun.runtime.options import OnUnregistered, WhenLocked, check_options
from keyrun.runtime.partition import Partition
from keyrun.runtime.pass_end import Unwind
from keyrun.runtime.queue.hook import Hook
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.recovery import startup
from keyrun.runtime.recovery.retention import Retention
from keyrun.runtime.redaction import Redact
from keyrun.runtime.runtime import Runtime
from keyrun.runtime.schedules.declared import check_schedules
from keyrun.runtime.tuning import Tuning
from keyrun.storage import LmdbStore, Store, StoreError, store_at
from keyrun.storage.claiming import claimed
from keyrun.storage.lmdb_store import CommitterName
from keyrun.storage.payload import PayloadCodec, Transform

if TYPE_CHECKING:
    from keyrun.runtime.host.host_loop import HostLoop
    from keyrun.runtime.host.tracing import TracerSource
    from keyrun.runtime.policies.resources import Resources
    from keyrun.runtime.schedules.declared import Schedule


Background = Iterable[Callable[[], Awaitable[None]]]
"""Tasks that run as long as a partition is open."""

CUT_OFF = 5.0
"""Seconds in which everything has to end that is cancelled at the end of a drain."""
Companion = Callable[[Runtime], AbstractAsyncContextManager[object]]
"""Returns a block that is open as long as a runtime, also while the runtime drains."""

REPORT_EVERY = 10.0
"""Seconds between two log lines that name the user code that a drain waits for."""
NAMED = 3
"""How many steps such a line names."""


def check_on_trio() -> None:
    """Raise an error that names the right import if this is not a Trio program."""
    if trio.lowlevel.in_trio_task():
        return
    right = "keyrun.sync.open_runtime"
    if "asyncio" in sys.modules:
        import asyncio

        with suppress(RuntimeError):
            asyncio.get_running_loop()
            right = "keyrun.asyncio.open_runtime"
    raise RuntimeError(f"keyrun.open_runtime runs on Trio, and this program does not: use {right}")


@asynccontextmanager
async def _entered(host: Host, lifespan: Lifespan) -> AsyncIterator[Any]:
    """Enter a lifespan, on Trio or on asyncio."""
    manager = async_manager_of(lifespan)
    async with AsyncExitStack() as stack:
        if is_for_asyncio(lifespan) and isinstance(host.asyncio, AsyncioLoop):
            await stack.enter_async_context(host.asyncio.opened())
            yield await enter(stack, host.asyncio.entered(manager), ON_TRIO_ASYNCIO)
        else:
            yield await enter(stack, manager, ON_TRIO)


@asynccontextmanager
async def _accompanied(
    companion: Companion | None,
) -> AsyncIterator[Callable[[Runtime], Awaitable[None]]]:
    """Yield a function that opens the companion of a runtime, and close the companion when this
    block is left. The companion has a task of its own, because it begins inside of the block of
    the runtime and ends after it."""
    over = trio.Event()
    left: BaseException | None = None

    async def run(
        companion: Companion,
        runtime: Runtime,
        task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED,
    ) -> None:
        # A cancellation of the caller drains the runtime first.
        with trio.CancelScope(shield=True):
            async with companion(runtime):
                task_status.started()
                await over.wait()

    async def begin(runtime: Runtime) -> None:
        if companion is not None:
            await nursery.start(run, companion, runtime)

    async with trio.open_nursery() as nursery:
        try:
            yield begin
        except trio.Cancelled:
            raise
        except BaseException as error:
            # Raised outside of the nursery, so that it is itself and not in a group.
            left = error
        finally:
            over.set()
    if left is not None:
        raise left


def as_store(
    store: "str | os.PathLike[str] | Store",
    committer: CommitterName = "inline",
    *,
    namespace: str = "default",
) -> Store:
    """Return a store, or the store at a path or a URL."""
    if isinstance(store, Store):
        return store
    try:
        return store_at(store, namespace=namespace, committer=committer)
    except ImportError as error:
        raise MissingExtra(
            "a store in PostgreSQL requires psycopg, which is not installed; install the extra "
            "'postgres' in a clone of Keyrun: pip install \".[postgres]\""
        ) from error


@asynccontextmanager
async def open_runtime(
    store: "str | os.PathLike[str] | Store",
    *,
    workflows: Iterable[Workflow[Any, Any]] = (),
    entities: Iterable[type] = (),
    schedules: "Iterable[Schedule[Any]]" = (),
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
    when_locked: WhenLocked | None = None,
    lock_timeout: float = 30.0,
    transform: Transform | None = None,
    redact: Redact | None = None,
    wall: Callable[[], float] = time.time,
    max_restarts: int = 5,
    restart_window: float = 60.0,
    resources: "Resources | None" = None,
    evict_after: float = 1.0,
    lifespan: Lifespan | None = None,
    tracing: "TracerSource | None" = None,
    host_loop: "HostLoop | None" = None,
    companion: Companion | None = None,
    tuning: Tuning = Tuning(),  # noqa: B008 (frozen)
) -> AsyncIterator[Runtime]:
    """Open a runtime on a store: `async with open_runtime("state/", workflows=[checkout]) as rt:`.

    Unfinished runs of an earlier process resume by themselves. Leaving the block drains the
    runtime, also if an exception or a cancellation leaves it: no step starts any more, running
    steps have `drain_timeout` seconds to finish, and unfinished runs resume at the next open.

    - `store`: a path, the URL of a PostgreSQL database, or a `Store` such as `MemoryStore()` or
      `LmdbStore(path)`.
    - `workflows`: the workflows that the runtime can run, in one or several versions.
    - `entities`: the entity classes that can be called.
    - `schedules`: a list of `keyrun.schedules.Schedule(...)`. Each is put in place as by
      `rt.schedule` before anything runs. A schedule that is no longer in the list stays.
    - `namespace`: a name for the part of the store that this runtime uses. Runtimes of one process
      can share a store under different namespaces.
    - `limits`: limits of all runs. Limits of a workflow and of a submit come before them.
    - `max_concurrent_steps`: the number of slots, that is of steps that may run at once.
    - `max_pending`, `max_pending_per_key`: the number of runs that may wait to start, in all and
      per key. Beyond it `rt.submit` waits.
    - `backpressure_timeout`: seconds that `rt.submit` waits for room before it raises
      `Backpressure`.
    - `drain_timeout`: seconds that running steps have to finish when the block is left.
    - `on_terminal`: the terminal hook, a function that takes a `RunOutcome`. Keyrun calls it at
      least once for every end of a run, in order per key. A sync function runs in a thread.
    - `hook_timeout`: seconds that an async hook has for one call. Then it is cancelled, and called
      again later.
    - `retention`: how long ended runs are kept.
    - `on_unregistered`: If the store has unfinished runs of workflows or versions that are not in
      `workflows`, Keyrun quarantines them and logs one warning with their counts. With `"refuse"`
      the open raises `UnknownWorkflow` instead, before anything starts.
    - `when_locked`: what happens if another process, or another runtime of this process, has the
      store open. With `"fail"`, the default for a path, the open raises `StoreLocked`. With
      `"wait"` it waits until the other one has ended. With `"join"`, the default for a URL, the
      processes share the store: one of them owns it and runs all steps, the others forward their
      calls to it, and another process takes over if the owner ends.
    - `lock_timeout`: seconds that `when_locked="wait"` waits before it raises `StoreLocked`, and
      that a call waits for an owner with `when_locked="join"` before it raises `NoOwner`.
    - `transform`: a `Transform` of stored payloads, for example encryption.
    - `redact`: a function that takes the text of an error, or the value of a payload, and returns
      what log lines, traces, the audit log and the HTTP API may show of it.
    - `wall`: the wall clock, in seconds since the epoch.
    - `max_restarts`, `restart_window`: If Keyrun's own code fails for a key, it restarts the key.
      After `max_restarts` restarts within `restart_window` seconds it quarantines the key.
    - `resources`: the `Resources` that steps share.
    - `evict_after`: seconds after which a run that waits is evicted from memory.
    - `lifespan`: an async context manager, or a function that returns one, such as a function with
      `@asynccontextmanager`. Keyrun enters it before the first step and leaves it after the last
      step. Steps find its value in `current_step().resources`.
    - `tracing`: a `keyrun.tracing.Tracing()`, which makes OpenTelemetry spans of runs and attempts.
    - `host_loop`: the asyncio loop of the application. Only `keyrun.asyncio` sets it.
    - `companion`: a block to open beside the runtime. Only the control plane sets it.
    - `tuning`: page and window sizes, and other constants. Only tests of Keyrun change them.
    """
    check_options(locals())
    store = as_store(store, namespace=namespace)
    check_on_trio()
    checks.at_least("wall()", wall(), -inf)
    registry, declared = Registry(workflows, resources), check_schedules(schedules)
    claim_timeout = lock_timeout if when_locked == "wait" else None
    async with claimed(store, namespace, timeout=claim_timeout), AsyncExitStack() as stack:
        host = Host(
            wall=wall,
            max_concurrent_steps=max_concurrent_steps,
            resources=resources,
            host_loop=host_loop,
            tracing=tracing,
            redact=redact,
            tuning=tuning,
        )
        if lifespan is not None:
            host.lifespan_value = await stack.enter_async_context(_entered(host, lifespan))
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
        host.watchdog.attempts = partition.attempts
        stack.enter_context(host.watchdog)
        try:
            async with (
                _accompanied(companion) as begin_companion,
                serve(
                    partition,
                    drain_timeout=drain_timeout,
                    on_unregistered=on_unregistered,
                    schedules=declared,
                    background=host.background,
                ),
            ):
                runtime = Runtime(partition)
                host.face = Faces(runtime, partition.state, host_loop).current
                await begin_companion(runtime)
                yield runtime
        finally:
            host.subscribers.close()


@asynccontextmanager
async def serve(
    partition: Partition,
    *,
    drain_timeout: float,
    on_unregistered: OnUnregistered,
    schedules: "Iterable[Schedule[Any]]" = (),
    background: Background = (),
) -> AsyncIterator[None]:
    """Recover a partition, put its schedules in place, let its runs resume, and drain it when the
    block is left. `background` has further tasks that run as long as the partition is open."""
    state, host = partition.state, partition.state.host
    tasks = list(background)
    # A task that is started before the work begins, starts with it.
    state.start = tasks.append
    state.store.when_failed(partition.fail)
    if host.pass_size is not None:
        state.commits.wake_in_slices(host.pass_size)
    state.commits.on_commit.append(state.counts.stage)
    state.commits.on_commit.append(host.transitions.look_at_level)
    try:
        await _begin(partition, on_unregistered)
        for each in schedules:
            await partition.schedules.put(each)
        _log_opened(partition)
    except BaseException:
        state.commits.on_commit.remove(state.counts.stage)
        state.commits.on_commit.remove(host.transitions.look_at_level)
        raise
    left: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                with trio.CancelScope(shield=True):
                    # The tasks shield themselves, so a cancelled start would wait for them forever.
                    await nursery.start(_run_work, partition, tasks)
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
            state.counts.stage(state.store.open_group())
        state.commits.on_commit.remove(state.counts.stage)
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
            start(lambda: _recover(partition))
            start(partition.delays.run)
            start(partition.timers.run)
            start(partition.eviction.run)
            start(partition.children.run)
            start(partition.sweeper.run)
            start(partition.dispatcher.answers.run)
            start(partition.operations.run)
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


async def _recover(partition: Partition) -> None:
    """Wake the keys of all unfinished runs, and log that they resume."""
    begun, runs = trio.current_time(), _unfinished(partition)
    await startup.wake_keys(partition.state, partition.queues, partition.damaged, partition.tuning)
    seconds = trio.current_time() - begun
    logger.info(
        "recovered %s in %.1f s",
        _counted(runs),
        seconds,
        extra={
            "event": "runtime_recovered",
            "namespace": partition.state.ledger.namespace,
            "runs": runs,
            "seconds": seconds,
        },
    )


def _log_opened(partition: Partition) -> None:
    """Log what was opened."""
    state = partition.state
    store = state.store.path if isinstance(state.store, LmdbStore) else type(state.store).__name__
    workflows = sorted({each.name for each in state.registry})
    runs = _unfinished(partition)
    logger.info(
        "opened %s, namespace %r, with %s; workflows: %s",
        store,
        state.ledger.namespace,
        _counted(runs),
        _named(workflows) or "none",
        extra={
            "event": "runtime_opened",
            "store": str(store),
            "namespace": state.ledger.namespace,
            "workflows": workflows,
            "runs": runs,
        },
    )


def _unfinished(partition: Partition) -> int:
    """Return the number of unfinished runs in the store."""
    return sum(partition.state.counts.by_version.values())


def _counted(runs: int) -> str:
    return f"{runs} unfinished {'run' if runs == 1 else 'runs'}"


async def _begin(partition: Partition, on_unregistered: OnUnregistered) -> None:
    ledger = partition.state.ledger
    await partition.state.read_counter()
    await partition.state.counts.recover()
    await _check_registered(partition, on_unregistered)
    await partition.state.begin_epoch()
    _warn_of_changes(partition)
    mark = ledger.name("open")
    partition.state.unclean = await partition.state.store.get("counter", mark) is not None
    partition.state.store.open_group().put("counter", mark, sealed("counter", mark, os.getpid()))
    await read_pauses(partition)
    partition.state.has_key_state = bool(
        await partition.state.store.scan("state", prefix=ledger.prefix, limit=1)
    )
    partition.state.has_memos = bool(
        await partition.state.store.scan("memo", prefix=ledger.prefix, limit=1)
    )
    if any(each.kind == "graph" for each in partition.state.registry):
        from keyrun.runtime.inspect.graph_shapes import keep_plans

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


async def read_pauses(partition: Partition) -> None:
    """Read which keys are paused, and whether all are."""
    state, prefix = partition.state, partition.state.ledger.prefix
    for key, _ in await state.store.scan("held", prefix=prefix):
        name = key[len(prefix) :].decode()
        if name:
            partition.queues.of(name).paused = True
        else:
            state.paused = state.stopped = True


async def _check_registered(partition: Partition, on_unregistered: OnUnregistered) -> None:
    """Raise, or log once, which unfinished runs have a workflow that the runtime does not have."""
    missing = {
        version: runs
        for version, runs in sorted(partition.state.counts.by_version.items())
        if partition.state.registry.find(*version) is None
    }
    if not missing:
        await partition.state.ledger.keep_unregistered(missing)
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
    await partition.state.ledger.keep_unregistered(missing)
    logger.warning(
        "%s; these runs hold their keys until an open has the workflows",
        said,
        extra={"event": "unregistered_workflows", "runs": sum(missing.values())},
    )


def _warn_of_changes(partition: Partition) -> None:
    """Log which unfinished runs were started by other code."""
    changed = partition.state.counts.of_other_code(partition.state.registry.fingerprint)
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
        kept = "Keyrun keeps further ends" if outbox.collecting else "it keeps no further ends"
        logger.warning(
            "%d ends of runs wait for on_terminal, but this runtime has no hook; %s: open the "
            "store with on_terminal to deliver them, or drop them and stop keeping ends with "
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
    begun = trio.current_time()
    deadline = begun + timeout
    running = _user_code(partition)
    logger.info(
        "draining: %s",
        f"waiting up to {timeout:g} s for {_named(running)}" if running else "no step is running",
        extra={"event": "drain_began"},
    )
    await _wait_for_steps(partition, deadline)
    for run in partition.runs.all_live():
        run.unwind(Unwind.LEAVE)
    partition.dispatcher.cut_off()
    await _wait_for_user_code(partition)
    await _wait_for_commits(partition, begun, deadline)
    if partition.delivery is not None:
        with trio.move_on_at(deadline):
            await partition.delivery.tried()
    seconds = trio.current_time() - begun
    logger.info(
        "drained in %.1f s",
        seconds,
        extra={
            "event": "runtime_drained",
            "namespace": partition.state.ledger.namespace,
            "seconds": seconds,
        },
    )


async def _wait_for_commits(partition: Partition, begun: float, deadline: float) -> None:
    """Wait until everything is durable. The database of a leased store may not answer for long, and
    must not hold the drain. Then the next owner finds what was committed, as after a crash."""
    state = partition.state
    until = max(deadline + CUT_OFF, trio.current_time() + 1) if state.store.leased else inf
    with trio.move_on_at(until):
        await state.store.durable()
        return
    seconds = trio.current_time() - begun
    state.commits.fail(
        StoreError(
            f"{state.store!r} made nothing durable for the last seconds of a drain of "
            f"{seconds:.0f} s; what was not acknowledged may be missing, and the runs resume at "
            "the next open"
        )
    )


async def _wait_for_steps(partition: Partition, until: float) -> None:
    """Let the actors finish what they do, and report the steps that they wait for."""
    while True:
        with trio.move_on_at(min(until, trio.current_time() + REPORT_EVERY)):
            await partition.actors.drain()
            return
        if trio.current_time() >= until:
            return
        if running := _user_code(partition):
            logger.info(
                "draining: still waiting for %s", _named(running), extra={"event": "draining"}
            )


async def _wait_for_user_code(partition: Partition) -> None:
    """Wait until all that was cancelled has ended. Only user code that cannot be stopped, such as
    the thread of a sync step, may take longer than `CUT_OFF`: it is waited for, so that its outcome
    is recorded. Anything else that is left ends with the engine's scope."""
    timeout = CUT_OFF
    while True:
        partition.runs.report_unreachable_ends()
        with trio.move_on_after(timeout):
            await partition.actors.drain()
            return
        running = _user_code(partition)
        if not running:
            logger.error(
                "the drain did not finish every run within %g s; the other runs are cancelled",
                CUT_OFF,
                extra={"event": "drain_cut_off"},
            )
            return
        _report(running)
        timeout = REPORT_EVERY


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
    logger.warning(
        "the runtime is closing and waits for code that cannot be stopped: %s",
        _named(running),
        extra={"event": "drain_waits"},
    )


def _named(running: list[str]) -> str:
    more = f" and {len(running) - NAMED} more" if running[NAMED:] else ""
    return ", ".join(running[:NAMED]) + more
