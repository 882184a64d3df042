"""Open a runtime from a Trio program, alone or shared with other processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from keyrun.control.options import Control
from keyrun.extras import need
from keyrun.runtime import open as engine
from keyrun.runtime.options import WhenLocked, check_options, lock_policy
from keyrun.runtime.runtime import Runtime
from keyrun.storage import LmdbStore

if TYPE_CHECKING:
    from keyrun.control.places import PlaceOf


@asynccontextmanager
async def opened(
    store: Any,
    *,
    control: bool | Control = False,
    when_locked: WhenLocked | None = None,
    lock_timeout: float = 30.0,
    place: "PlaceOf | None" = None,
    **options: Any,
) -> AsyncIterator[Runtime]:
    """Open a runtime, and serve its control plane if it is asked for. `place` returns the place of
    a store that is shared, if it is not a usual one."""
    served = Control.of(control)
    when_locked = lock_policy(when_locked, store)
    locked: dict[str, Any] = {"when_locked": when_locked, "lock_timeout": lock_timeout}
    if served is None and when_locked != "join":
        async with engine.open_runtime(store, **locked, **options) as runtime:
            yield runtime
        return
    check_options({"store": store, **locked, **options})
    store = engine.as_store(store, namespace=options.get("namespace", "default"))
    path = store.path if isinstance(store, LmdbStore) else None
    if when_locked == "join":
        for name in ("workflows", "entities", "schedules"):
            # They are read each time this process gets the store.
            options[name] = list(options.get(name, ()))
        need("anycorn", for_="when_locked='join'", extra="control")
        from keyrun.control.joining import joined
        from keyrun.control.places import place_of

        shares = (place or place_of)(
            store,
            partial(engine.open_runtime, store, **options),
            namespace=options.get("namespace", "default"),
            control=served or Control(),
            call_timeout=lock_timeout,
        )
        workflows = options["workflows"]
        async with joined(shares, workflows=workflows, lock_timeout=lock_timeout) as shared:
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
