"""Code that uses asyncio where Trio runs it, or Trio where asyncio runs it, is told what to do.

`test_asyncio_host.py` has the workflows."""

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel

import keyrun
import keyrun.asyncio
import keyrun.sync
from keyrun import Context, Entity, RunFailed, entity, step, workflow
from keyrun.errors import CallFailed
from keyrun.storage import MemoryStore
from tests.hosting.hosts import GUEST, Host

ON_ASYNCIO: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
    "sleep": lambda: asyncio.sleep(1),
    "sleep_0": lambda: asyncio.sleep(0),
    "event": lambda: asyncio.Event().wait(),
    "to_thread": lambda: asyncio.to_thread(print),
}


async def in_a_nursery() -> None:
    async with trio.open_nursery():
        pass


ON_TRIO: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
    "sleep": partial(trio.sleep, 1),
    "checkpoint": trio.lowlevel.checkpoint,
    "event": lambda: trio.Event().wait(),
    "nursery": in_a_nursery,
    "to_thread": lambda: trio.to_thread.run_sync(print),
}


@entity
class Mistaken(Entity):
    async def wait(self, what: str) -> None:
        await ON_ASYNCIO[what]()


HINT = "entity methods run on Trio: use Trio instead of asyncio, as with trio.sleep"


@pytest.mark.parametrize("what", ON_ASYNCIO)
def test_an_entity_method_that_uses_asyncio_fails_with_a_hint(what: str, host: Host) -> None:
    async def body(rt: keyrun.asyncio.Runtime) -> None:
        with pytest.raises((RuntimeError, TypeError, AttributeError)) as unchanged:
            await rt.entity(Mistaken, "k").wait(what)
        assert HINT in "".join(traceback.format_exception(unchanged.value))
        with pytest.raises(CallFailed, match=HINT):
            await rt.entity(Mistaken, "k", request_id="r").wait(what)

    host.run_with_runtime(body, entities=[Mistaken])


def test_other_errors_of_an_entity_method_have_no_hint() -> None:
    @entity
    class Failing(Entity):
        async def fail(self) -> None:
            raise RuntimeError("no")

    with (
        keyrun.sync.open_runtime(MemoryStore(), entities=[Failing]) as rt,
        pytest.raises(RuntimeError) as raised,
    ):
        rt.call(Failing, "k", "fail")
    assert not hasattr(raised.value, "__notes__")


@pytest.mark.parametrize("what", ON_TRIO)
def test_an_asyncio_step_that_uses_trio_fails_with_a_hint(what: str, host: Host) -> None:
    @step(asyncio=True, retry=keyrun.Retry.none())
    async def mistaken() -> None:
        await ON_TRIO[what]()

    @workflow
    async def calling(ctx: Context) -> None:
        await ctx.step(mistaken)

    async def body(rt: keyrun.asyncio.Runtime) -> None:
        with pytest.raises(RunFailed, match="the step uses Trio: remove asyncio=True"):
            await (await rt.submit(calling, key="k")).result()

    host.run_with_runtime(body, workflows=[calling])


@asynccontextmanager
async def on_trio() -> AsyncIterator[str]:
    await trio.sleep(0.001)
    yield "pool"


@asynccontextmanager
async def in_nursery() -> AsyncIterator[str]:
    async with trio.open_nursery():
        yield "pool"


@asynccontextmanager
async def on_asyncio() -> AsyncIterator[str]:
    await asyncio.sleep(0.001)
    yield "pool"


def no_pool() -> str:
    raise RuntimeError("no pool")


@asynccontextmanager
async def failing() -> AsyncIterator[str]:
    yield no_pool()


@pytest.mark.parametrize("lifespan", [on_trio, in_nursery])
def test_a_lifespan_for_trio_is_refused_on_an_asyncio_host(lifespan: Any, host: Host) -> None:
    async def main() -> None:
        async with keyrun.asyncio.open_runtime(
            MemoryStore(), lifespan=lifespan, thread=host.thread
        ):
            pass

    with pytest.raises(RuntimeError, match=r"lifespan uses Trio, and keyrun\.asyncio enters it on"):
        host.run(main())


async def test_an_unmarked_lifespan_for_asyncio_is_refused_on_a_trio_host() -> None:
    with pytest.raises(RuntimeError, match=r"mark it with @keyrun\.asyncio\.lifespan"):
        async with keyrun.open_runtime(MemoryStore(), lifespan=on_asyncio):
            pass


async def test_a_marked_lifespan_that_uses_trio_is_refused_on_a_trio_host() -> None:
    @keyrun.asyncio.lifespan
    @asynccontextmanager
    async def marked() -> AsyncIterator[str]:
        await trio.sleep(0.001)
        yield "pool"

    with pytest.raises(RuntimeError, match=r"@keyrun\.asyncio\.lifespan: remove the mark"):
        async with keyrun.open_runtime(MemoryStore(), lifespan=marked):
            pass


def test_an_unmarked_lifespan_for_asyncio_is_refused_on_a_sync_host() -> None:
    with (
        pytest.raises(RuntimeError, match=r"mark it with @keyrun\.asyncio\.lifespan"),
        keyrun.sync.open_runtime(MemoryStore(), lifespan=on_asyncio),
    ):
        pass


def test_a_lifespan_that_fails_raises_its_own_error() -> None:
    async def main() -> None:
        async with keyrun.asyncio.open_runtime(MemoryStore(), lifespan=failing):
            pass

    for opens in (
        lambda: GUEST.run(main()),
        lambda: keyrun.sync.start(MemoryStore(), lifespan=failing),
    ):
        with pytest.raises(RuntimeError, match=r"^no pool$"):
            opens()
