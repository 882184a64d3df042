"""An `App` describes an application once, and all hosts open it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from inspect import signature
from typing import Any

import attrs
import pytest
import trio

import keyrun
import keyrun.asyncio
import keyrun.sync
from keyrun import App, Context, Limits, Runtime, current_step, step, workflow
from keyrun.errors import InvalidSchedule, UnknownWorkflow
from keyrun.schedules import Cron, Every, Schedule
from keyrun.storage import MemoryStore
from keyrun.testing import AsyncioHost, SyncHost, open_test_runtime
from tests.hosting.hosts import GUEST

OPENED = {"store", "app", "namespace", "when_locked", "lock_timeout", "wall", "tuning", "control"}
"""The arguments of `open_runtime` that say where and how an application is opened."""


@step
async def look() -> str:
    return str(current_step().resources)


@workflow
async def visit(ctx: Context) -> str:
    return await ctx.step(look)


@workflow
async def report(ctx: Context, region: str) -> str:
    return region


@asynccontextmanager
async def pools() -> AsyncIterator[str]:
    yield "pools"


NIGHTLY = Schedule("nightly", report, "eu", key="reports", when=Cron("30 3 * * *"))
SHOP = App(workflows=[visit, report], lifespan=pools, schedules=[NIGHTLY])


def test_an_app_has_the_arguments_of_open_runtime_that_describe_an_application() -> None:
    parameters = {
        name: each.default
        for name, each in signature(keyrun.open_runtime).parameters.items()
        if name not in OPENED
    }
    assert {each.name: each.default for each in attrs.fields(App)} == parameters


def test_every_host_opens_an_app() -> None:
    async def on_trio() -> str:
        async with keyrun.open_runtime(MemoryStore(), app=SHOP) as rt:
            return await (await rt.submit(visit, key="k")).result()

    async def on_asyncio() -> str:
        async with keyrun.asyncio.open_runtime(MemoryStore(), app=SHOP) as rt:
            return await (await rt.submit(visit, key="k")).result()

    def in_threads() -> str:
        with keyrun.sync.open_runtime(MemoryStore(), app=SHOP) as rt:
            return rt.submit(visit, key="k").result()

    def started() -> str:
        rt = keyrun.sync.start(MemoryStore(), app=SHOP)
        found = rt.submit(visit, key="k").result()
        rt.stop()
        return found

    hosts = (lambda: trio.run(on_trio), lambda: GUEST.run(on_asyncio()), in_threads, started)
    assert [host() for host in hosts] == ["pools"] * 4


def test_an_app_can_have_a_plain_context_manager_for_threads() -> None:
    @contextmanager
    def plain() -> Iterator[str]:
        yield "plain"

    app = attrs.evolve(SHOP, lifespan=plain)
    with keyrun.sync.open_runtime(MemoryStore(), app=app) as rt:
        assert rt.submit(visit, key="k").result() == "plain"


async def test_an_argument_of_the_app_cannot_be_given_beside_it() -> None:
    """Not even with the default value, which would say nothing about which of the two is meant."""
    with pytest.raises(TypeError, match=r"drain_timeout=.*App\(drain_timeout=...\).*attrs.evolve"):
        keyrun.open_runtime(MemoryStore(), app=SHOP, drain_timeout=10.0)
    async with keyrun.open_runtime(MemoryStore(), app=SHOP, namespace="eu") as rt:
        assert isinstance(rt, Runtime)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workflows": 3}, "workflows must be a list, got 3"),
        ({"drain_timeout": -1}, "drain_timeout must be at least 0, got -1"),
        ({"lifespan": 3}, "lifespan must be an async context manager"),
        ({"workflows": [3]}, "workflows must be made with"),
        ({"schedules": [NIGHTLY, NIGHTLY]}, "two schedules of the list have the id 'nightly'"),
    ],
)
def test_a_wrong_option_is_named_where_the_app_is_made(options: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        App(**options)


def test_an_app_is_frozen_and_reads_generators_once() -> None:
    app = App(workflows=(each for each in [visit]), limits=Limits(run_timeout=5))
    assert app.workflows == (visit,)
    with pytest.raises(AttributeError):
        app.limits = Limits()  # type: ignore[misc]


async def test_an_app_is_opened_in_tests_on_virtual_time(autojump_clock: Any) -> None:
    async with open_test_runtime(app=SHOP) as rt:
        assert await (await rt.submit(visit, key="k")).result() == "pools"
    with pytest.raises(TypeError, match=r"lifespan=\.\.\., which belongs to the app"):
        async with open_test_runtime(app=SHOP, lifespan=pools):
            pass


def test_an_app_is_opened_by_the_hosts_for_tests() -> None:
    with SyncHost().open_test_runtime(app=SHOP) as rt:
        assert rt.submit(visit, key="k").result() == "pools"

    async def main() -> None:
        async with AsyncioHost().open_test_runtime(app=SHOP) as rt:
            assert await (await rt.submit(visit, key="k")).result() == "pools"

    GUEST.run(main())


async def test_an_open_puts_the_schedules_in_place_before_anything_fires(
    autojump_clock: Any,
) -> None:
    store = MemoryStore()
    pulse = Schedule("pulse", report, "old", key="k", when=Every(10))
    async with open_test_runtime(store, app=attrs.evolve(SHOP, schedules=[pulse])) as rt:
        await trio.sleep(25)
        (status,) = await rt.schedules()
        assert status.fired == 2
    await trio.sleep(100)
    changed = Schedule("pulse", report, "new", key="k", when=Every(10))
    async with open_test_runtime(store, app=attrs.evolve(SHOP, schedules=[changed])) as rt:
        await trio.sleep(1)
        (status,) = await rt.schedules()
        assert status.fired == 3, "the counters stay"
        assert status.last_run_id is not None
        assert await rt.input(status.last_run_id) == "new"


async def test_an_open_resets_no_schedule_and_keeps_one_that_left_the_list(
    autojump_clock: Any,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, app=SHOP) as rt:
        await rt.pause_schedule("nightly")
    async with open_test_runtime(store, app=SHOP) as rt:
        (status,) = await rt.schedules()
        assert status.paused
    async with open_test_runtime(store, app=attrs.evolve(SHOP, schedules=[])) as rt:
        assert [each.schedule_id for each in await rt.schedules()] == ["nightly"]
        assert await rt.delete_schedule("nightly")
    async with open_test_runtime(store, app=attrs.evolve(SHOP, schedules=[])) as rt:
        assert await rt.schedules() == []


async def test_schedules_that_cannot_be_put_in_place_stop_the_open(autojump_clock: Any) -> None:
    with pytest.raises(InvalidSchedule, match="two schedules of the list have the id 'nightly'"):
        async with open_test_runtime(workflows=[report], schedules=[NIGHTLY, NIGHTLY]):
            pass
    with pytest.raises(UnknownWorkflow, match="report"):
        async with open_test_runtime(schedules=[NIGHTLY]):
            pass
    with pytest.raises(InvalidSchedule, match="when must be"):
        Schedule("nightly", report, "eu", key="reports", when="daily")  # type: ignore[call-overload]
