"""Bad arguments of the three `open_runtime` raise errors that name the argument."""

from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from inspect import signature
from math import inf, nan
from typing import Any

import pytest
import trio

import keyrun
import keyrun.sync
from keyrun.asyncio import open_runtime
from keyrun.runtime.options import CHECKS
from keyrun.storage import MemoryStore
from tests.hosting.hosts import GUEST

COUNTS = ("max_concurrent_steps", "max_pending", "max_pending_per_key")
SECONDS = (
    *("backpressure_timeout", "drain_timeout", "lock_timeout", "evict_after"),
    *("hook_timeout", "restart_window"),
)


class Cipher:
    def wrap(self, data: bytes) -> bytes:
        return data

    unwrap = wrap


def of_an_app(app: object) -> AbstractContextManager[None]:
    return nullcontext()


async def no_context_manager() -> None: ...


async def redact_later(value: object) -> object:
    return value


INTEGER = "must be an integer, got"
NUMBER = "must be a number, got"
NO_MANAGER = "lifespan must be an async context manager, .*got"
BAD: list[tuple[str, Any, str]] = [
    ("store", 3, "store must be a path or a Store, got 3"),
    ("workflows", 3, "workflows must be a list, got 3"),
    ("workflows", [3], "workflows must be made with @workflow, @machine or Graph, got 3"),
    ("entities", "Cart", "entities must be a list, got 'Cart'"),
    (
        "entities",
        [Cipher],
        "entities must be classes decorated with @entity, got .*Cipher",
    ),
    ("schedules", 3, "schedules must be a list, got 3"),
    ("schedules", [3], r"schedules must be a list of Schedule\(...\), got 3"),
    ("app", 3, "app must be a App, got 3"),
    ("namespace", "a/b", "namespace must be 1 to 64 of A-Z, .* got 'a/b'"),
    ("namespace", [], r"namespace must be 1 to 64 of A-Z, .* got \[\]"),
    ("limits", 3, "limits must be a Limits, got 3"),
    *((name, 0, f"{name} must be at least 1, got 0") for name in COUNTS),
    *((name, 1.5, f"{name} {INTEGER} 1.5") for name in COUNTS),
    *((name, inf, f"{name} {INTEGER} inf") for name in COUNTS),
    *((name, -1, f"{name} must be at least 0, got -1") for name in SECONDS),
    *((name, nan, f"{name} must be at least 0, got nan") for name in SECONDS),
    *((name, "5", f"{name} {NUMBER} '5'") for name in SECONDS),
    *((name, True, f"{name} {NUMBER} True") for name in SECONDS),
    ("max_restarts", 1.5, f"max_restarts {INTEGER} 1.5"),
    ("hook_timeout", 0, "hook_timeout must be positive, got 0"),
    ("restart_window", 0, "restart_window must be positive, got 0"),
    ("on_terminal", 3, "on_terminal must be a function of one RunOutcome, got 3"),
    ("on_terminal", lambda: None, "on_terminal must be a function of one RunOutcome, got"),
    ("retention", 60, "retention must be a Retention, got 60"),
    ("on_unregistered", "drop", "on_unregistered must be 'hold' or 'refuse', got 'drop'"),
    ("when_locked", "share", "when_locked must be 'fail', 'wait' or 'join', got 'share'"),
    ("when_locked", [], r"when_locked must be 'fail', 'wait' or 'join', got \[\]"),
    ("when_locked", "join", "when_locked='join' requires a path or a URL, got MemoryStore"),
    ("control", 3, r"control must be True, False or Control\(...\), got 3"),
    ("control", True, "MemoryStore.* has none: pass Control"),
    ("transform", 5, "transform must have the methods wrap and unwrap, got 5"),
    ("transform", Cipher, "transform must be an instance, got .*Cipher'>: call the class"),
    ("redact", 3, "redact must be a plain function of one value, got 3"),
    ("redact", lambda: 3, "redact must be a plain function of one value, got <function"),
    ("redact", redact_later, "redact must be a plain function of one value, got <function"),
    ("wall", 3, "wall must be callable, got 3"),
    ("wall", str, r"wall\(\) must be a number, got ''"),
    ("resources", "cpu", "resources must be a Resources, got 'cpu'"),
    ("lifespan", 3, f"{NO_MANAGER} 3"),
    ("lifespan", lambda: 3, f"{NO_MANAGER} <function"),
    ("lifespan", no_context_manager, f"{NO_MANAGER} <function no_context"),
    ("lifespan", of_an_app, "lifespan must be a function without parameters, got"),
    ("tuning", 3, "tuning must be a Tuning, got 3"),
    ("tracing", 3, r"tracing must be a keyrun\.tracing\.Tracing\(\), got 3"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_a_bad_argument_is_named(name: str, value: Any, message: str) -> None:
    options: dict[str, Any] = {"store": MemoryStore(), name: value}

    async def on_trio() -> None:
        async with keyrun.open_runtime(**options):
            pass

    async def on_asyncio() -> None:
        async with open_runtime(**options):
            pass

    def in_threads() -> None:
        with keyrun.sync.open_runtime(**options):
            pass

    for host in (lambda: trio.run(on_trio), lambda: GUEST.run(on_asyncio()), in_threads):
        with pytest.raises((TypeError, ValueError), match=message):
            host()


def test_every_option_is_checked() -> None:
    parameters = set(signature(keyrun.open_runtime).parameters) - {"host_loop"}
    assert {*CHECKS, "app", "control"} == {name for name, _, _ in BAD} == parameters


@pytest.mark.parametrize("name", ["keyrun.asyncio", "keyrun.sync"])
def test_a_lifespan_is_not_entered_if_another_argument_is_bad(name: str) -> None:
    entered = []

    @asynccontextmanager
    async def pools() -> AsyncIterator[None]:
        entered.append("pools")
        yield

    async def on_asyncio() -> None:
        async with open_runtime(MemoryStore(), lifespan=pools, max_pending=0):
            pass

    with pytest.raises(ValueError, match="max_pending must be at least 1, got 0"):
        if name == "keyrun.asyncio":
            GUEST.run(on_asyncio())
        else:
            keyrun.sync.start(MemoryStore(), lifespan=pools, max_pending=0)
    assert not entered


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
