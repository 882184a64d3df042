"""Lifespans: context managers that give steps what they need, such as connection pools."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from inspect import iscoroutine
from typing import Any, NamedTuple, TypeAlias, TypeVar

from keyrun.runtime.texts import needs_asyncio, needs_trio

Lifespan: TypeAlias = (
    Callable[[], AbstractAsyncContextManager[Any]] | AbstractAsyncContextManager[Any]
)
"""An async context manager, or a function that returns one."""

AnyLifespan: TypeAlias = (
    Lifespan | Callable[[], AbstractContextManager[Any]] | AbstractContextManager[Any]
)
"""A plain or an async context manager, or a function that returns one."""

L = TypeVar("L", bound=Callable[[], AbstractAsyncContextManager[Any]])

_MARK = "_keyrun_runs_on_asyncio"


def lifespan(function: L) -> L:
    """Mark a lifespan whose code is written for asyncio:

        @keyrun.asyncio.lifespan
        @asynccontextmanager
        async def pools(): ...

    `keyrun.open_runtime` then runs it on the asyncio loop of its steps. `keyrun.asyncio` needs no
    mark."""
    setattr(function, _MARK, True)
    return function


def is_for_asyncio(manager: Lifespan) -> bool:
    """Return whether a lifespan is marked for asyncio."""
    return getattr(manager, _MARK, False) is True


Manager: TypeAlias = AbstractAsyncContextManager[Any] | AbstractContextManager[Any]


def manager_of(lifespan: Callable[[], Manager] | Manager) -> Manager:
    """Return the context manager of a lifespan."""
    manager: Any = lifespan
    if callable(lifespan) and not is_manager(lifespan):
        manager = lifespan()
    if not is_manager(manager):
        if iscoroutine(manager):
            manager.close()
        raise not_async(lifespan)
    return manager  # type: ignore[no-any-return]


def async_manager_of(lifespan: Lifespan) -> AbstractAsyncContextManager[Any]:
    """Return the context manager of a lifespan, which has to be async."""
    manager = manager_of(lifespan)
    if not isinstance(manager, AbstractAsyncContextManager):
        raise not_async(lifespan)
    return manager


def is_manager(value: object) -> bool:
    """Return whether `value` is a context manager, plain or async."""
    return isinstance(value, AbstractAsyncContextManager | AbstractContextManager)


def not_async(lifespan: object) -> TypeError:
    """Return the error for a lifespan that has no async context manager."""
    return TypeError(
        "lifespan must be an async context manager, or a function that returns one, got "
        f"{lifespan!r}; use @asynccontextmanager"
    )


class LifespanHost(NamedTuple):
    """Where a lifespan is entered."""

    is_wrong: Callable[[BaseException], bool]
    """Returns whether an error shows that the lifespan is written for another place."""
    remedy: str


ON_TRIO = LifespanHost(
    needs_asyncio,
    "lifespan uses asyncio, and this host enters it on Trio: mark it with @keyrun.asyncio.lifespan",
)
ON_TRIO_ASYNCIO = LifespanHost(
    needs_trio,
    "lifespan uses Trio, and it is marked with @keyrun.asyncio.lifespan: remove the mark",
)
ON_HOST_LOOP = LifespanHost(
    needs_trio,
    "lifespan uses Trio, and keyrun.asyncio enters it on the event loop of the application: use "
    "asyncio in it",
)


async def enter(
    stack: AsyncExitStack, manager: AbstractAsyncContextManager[Any], place: LifespanHost
) -> Any:
    """Enter a lifespan, and return its value. If its code is written for another place, the error
    says what to do."""
    try:
        return await stack.enter_async_context(manager)
    except Exception as error:
        if place.is_wrong(error):
            raise RuntimeError(place.remedy) from error
        raise
