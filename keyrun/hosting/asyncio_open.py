"""`open_runtime` and `connect` of `keyrun.asyncio`. `keyrun.hosting.generate` writes this file."""

import os
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from keyrun.control.options import Control
from keyrun.hosting.app import App, takes_app
from keyrun.hosting.asyncio_host import connected, opened
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.faces.asyncio_face import Runtime
from keyrun.runtime.host.lifespan import Lifespan
from keyrun.runtime.host.tracing import TracerSource
from keyrun.runtime.limits import Limits
from keyrun.runtime.options import OnUnregistered, WhenLocked
from keyrun.runtime.policies.resources import Resources
from keyrun.runtime.queue.hook import Hook
from keyrun.runtime.recovery.retention import Retention
from keyrun.runtime.redaction import Redact
from keyrun.runtime.schedules.declared import Schedule
from keyrun.runtime.tuning import Tuning
from keyrun.storage import Store
from keyrun.storage.payload import Transform


@takes_app
def open_runtime(
    store: str | os.PathLike[str] | Store,
    *,
    workflows: Iterable[Workflow[Any, Any]] = (),
    entities: Iterable[type] = (),
    schedules: Iterable[Schedule[Any]] = (),
    namespace: str = "default",
    limits: Limits = Limits(),
    max_concurrent_steps: int = 256,
    max_pending: int = 100000,
    max_pending_per_key: int = 10000,
    backpressure_timeout: float = 30.0,
    drain_timeout: float = 10.0,
    on_terminal: Hook | None = None,
    hook_timeout: float = 60.0,
    retention: Retention = Retention(),
    on_unregistered: OnUnregistered = "hold",
    when_locked: WhenLocked | None = None,
    lock_timeout: float = 30.0,
    transform: Transform | None = None,
    redact: Redact | None = None,
    wall: Callable[[], float] = time.time,
    max_restarts: int = 5,
    restart_window: float = 60.0,
    resources: Resources | None = None,
    evict_after: float = 1.0,
    lifespan: Lifespan | None = None,
    tracing: TracerSource | None = None,
    tuning: Tuning = Tuning(),
    app: App | None = None,
    control: bool | Control = False,
    thread: bool = False,
) -> AbstractAsyncContextManager[Runtime]:
    """Open a runtime on a store:
    `async with keyrun.asyncio.open_runtime("state/", workflows=[checkout]) as rt:`.

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
    - `tuning`: page and window sizes, and other constants. Only tests of Keyrun change them.
    - `app`: an `App`. It takes the place of all arguments that describe an application. An error
      names an argument that is given beside it.
    - `control`: With `True`, other processes of the same user can operate the runtime: see
      `keyrun.connect`. With `keyrun.web.Control(http=...)`, also over a network.

    - `thread`: Run Keyrun in a thread of its own, for applications that block their loop.

    A path is opened with a committer in a child process, so that a slow disk does not stop the
    loop. `lifespan` and an async `on_terminal` run on the loop of the application.
    """
    return opened(
        store,
        workflows=workflows,
        entities=entities,
        schedules=schedules,
        namespace=namespace,
        limits=limits,
        max_concurrent_steps=max_concurrent_steps,
        max_pending=max_pending,
        max_pending_per_key=max_pending_per_key,
        backpressure_timeout=backpressure_timeout,
        drain_timeout=drain_timeout,
        on_terminal=on_terminal,
        hook_timeout=hook_timeout,
        retention=retention,
        on_unregistered=on_unregistered,
        when_locked=when_locked,
        lock_timeout=lock_timeout,
        transform=transform,
        redact=redact,
        wall=wall,
        max_restarts=max_restarts,
        restart_window=restart_window,
        resources=resources,
        evict_after=evict_after,
        lifespan=lifespan,
        tracing=tracing,
        tuning=tuning,
        control=control,
        thread=thread,
    )


def connect(
    address: str | os.PathLike[str],
    *,
    token: str | None = None,
    workflows: Iterable[Workflow[Any, Any]] = (),
    call_timeout: float = 60.0,
    context: ssl.SSLContext | None = None,
    namespace: str | None = None,
) -> AbstractAsyncContextManager[Runtime]:
    """Connect to the runtime of another process, and return a client that has the methods of
    `Runtime`: `async with keyrun.asyncio.connect("state/") as client: ...`.

    The owner of the store must run with `control=True`. If it ends, the client connects to the next
    owner, and repeats the calls that were not answered. Each write is applied once.

    - `address`: the directory of a store, `unix:PATH` for a socket, an address such as
      `http://host:8470` or `https://host/prefix`, or the URL of a PostgreSQL database.
    - `token`: the token for an address over HTTP.
    - `workflows`: workflows whose results have declared classes. Workflows that you pass to
      `submit` need not be in the list.
    - `call_timeout`: seconds that a call waits for a process that owns the store, before it raises
      `NoOwner`. A call that the owner has received has no timeout.
    - `context`: the TLS settings for an address with `https`, for example with the certificate of
      your own authority. Default: `ssl.create_default_context()`.
    - `namespace`: the namespace in the store. At another address than the URL of a database, a
      runtime with another namespace rejects the client. Default for a URL: `default`.
    """
    return connected(
        address,
        token=token,
        workflows=workflows,
        call_timeout=call_timeout,
        context=context,
        namespace=namespace,
    )
