"""Open a runtime from a Trio program, alone or shared with other processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from keyrun.control.options import Control
from keyrun.extras import need
from keyrun.runtime import open as engine
from keyrun.runtime.options import WhenLocked, check_options
from keyrun.runtime.runtime import Runtime
from keyrun.storage import LmdbStore


@asynccontextmanager
async def opened(
    store: Any,
    *,
    control: bool | Control = False,
    when_locked: WhenLocked = "fail",
    lock_timeout: float = 30.0,
    **options: Any,
) -> AsyncIterator[Runtime]:
    """Open a runtime, and serve its control plane if it is asked for."""
    served = Control.of(control)
    locked: dict[str, Any] = {"when_locked": when_locked, "lock_timeout": lock_timeout}
    if served is None and when_locked != "join":
        async with engine.open_runtime(store, **locked, **options) as runtime:
            yield runtime
        return
    check_options({"store": store, **locked, **options})
    store = engine.as_store(store, namespace=options.get("namespace", "default"))
    path = store.path if isinstance(store, LmdbStore) else None
    if when_locked == "join":
        if path is None:
            raise ValueError(f"when_locked='join' requires the path of a store, got {store!r}")
        for name in ("workflows", "entities", "schedules"):
            # They are read each time this process gets the store.
            options[name] = list(options.get(name, ()))
        need("anycorn", for_="when_locked='join'", extra="control")
        from keyrun.control.joining import joined

        async with joined(
            store,
            partial(engine.open_runtime, store, **options),
            namespace=options.get("namespace", "default"),
            workflows=options["workflows"],
            control=served or Control(),
            lock_timeout=lock_timeout,
        ) as shared:
            yield shared
        return
    assert served is not None
    if path is None and served.http is None:
        raise ValueError(
            f"control=True serves a socket in the directory of a store, and {store!r} has none: "
            "pass Control(http=...)"
        )
    need("anycorn", for_="control=True", extra="control")
    from keyrun.control.serving import control_plane

    companion = partial(control_plane, store=path, options=served)
    async with engine.open_runtime(store, **locked, **options, companion=companion) as runtime:
        yield runtime
