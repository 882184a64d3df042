"""Bad arguments of the three `open_runtime` raise errors that name the argument."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import keyrun
import keyrun.sync
from keyrun.asyncio import open_runtime
from keyrun.storage import MemoryStore
from tests.hosting.hosts import GUEST

BAD: dict[str, tuple[Any, str]] = {
    "workflows": (3, "workflows must be a list, got 3"),
    "entities": ("Cart", "entities must be a list, got 'Cart'"),
    "limits": (3, "limits must be a Limits, got 3"),
    "retention": (60, "retention must be a Retention, got 60"),
    "tuning": (3, "tuning must be a Tuning, got 3"),
    "wall": (3, "wall must be callable, got 3"),
    "resources": ("cpu", "resources must be a Resources, got 'cpu'"),
    "transform": (3, r"transform\.wrap must be callable, got None"),
    "store": (3, "store must be a path or a Store, got 3"),
    "when_locked": ("join", "when_locked must be 'fail' or 'wait', got 'join'"),
    "lock_timeout": (-1, "lock_timeout must be at least 0, got -1"),
    "lifespan": (3, "lifespan must be an async context manager, .*got 3"),
    "on_terminal": (3, "on_terminal must be a function of one RunOutcome, got 3"),
}


def options(name: str) -> dict[str, Any]:
    return {"store": MemoryStore(), name: BAD[name][0]}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_is_named(name: str) -> None:
    async def on_asyncio() -> None:
        async with open_runtime(**options(name)):
            pass

    with pytest.raises((TypeError, ValueError), match=BAD[name][1]):
        GUEST.run(on_asyncio())
    with (
        pytest.raises((TypeError, ValueError), match=BAD[name][1]),
        keyrun.sync.open_runtime(**options(name)),
    ):
        pass


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_argument_is_named_on_trio(name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=BAD[name][1]):
        async with keyrun.open_runtime(**options(name)):
            pass


def test_thread_must_be_true_or_false() -> None:
    async def main() -> None:
        async with open_runtime(MemoryStore(), thread="yes"):  # type: ignore[arg-type]
            pass

    with pytest.raises(TypeError, match="thread must be True or False, got 'yes'"):
        GUEST.run(main())


@contextmanager
def plain() -> Iterator[None]:
    yield


async def test_a_plain_context_manager_is_no_lifespan_on_trio() -> None:
    with pytest.raises(TypeError, match="lifespan must be an async context manager"):
        async with keyrun.open_runtime(MemoryStore(), lifespan=plain()):  # type: ignore[arg-type]
            pass
