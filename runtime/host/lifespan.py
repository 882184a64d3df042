"""Lifespans: context managers that give steps what they need, such as connection pools."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, TypeVar

Lifespan: TypeAlias = (
    Callable[[], AbstractAsyncContextManager[Any]] | AbstractAsyncContextManager[Any]
)
"""An async context manager, or a function that returns one."""

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
