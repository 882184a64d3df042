"""Context variables of the host are visible in steps and in calls."""

from contextvars import ContextVar

import pytest

import keyrun.sync
from keyrun import Context, step, workflow
from keyrun.asyncio import Runtime, open_runtime
from keyrun.storage import MemoryStore
from tests.hosting.hosts import Host

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@step
async def on_trio() -> str:
    return tenant.get()


@step(asyncio=True)
async def on_loop() -> str:
    return tenant.get()


@step
def in_thread() -> str:
    return tenant.get()


@workflow
async def asks(ctx: Context) -> list[str]:
    return [await ctx.step(on_trio), await ctx.step(on_loop), await ctx.step(in_thread)]


@workflow
async def waits(ctx: Context) -> None:
    await ctx.wait_signal("go")


class Witness:
    """A transform that notes who stores a payload."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def wrap(self, data: bytes, /) -> bytes:
        self.seen.append(tenant.get())
        return data

    def unwrap(self, data: bytes, /) -> bytes:
        return data


@pytest.fixture(autouse=True)
def nobody() -> None:
    tenant.set("nobody")


def test_steps_see_the_variables_of_the_task_that_opened_the_runtime(host: Host) -> None:
    async def main() -> list[str]:
        tenant.set("opener")
        async with open_runtime(MemoryStore(), workflows=[asks], thread=host.thread) as rt:
            tenant.set("caller")
            return await (await rt.submit(asks, key="k")).result()

    assert host.run(main()) == ["opener"] * 3


def test_a_call_runs_with_the_variables_of_its_caller(host: Host) -> None:
    witness = Witness()

    async def body(rt: Runtime) -> None:
        run = await rt.submit(waits, key="k")
        witness.seen.clear()
        tenant.set("caller")
        await rt.signal(run.run_id, "go", 1)
        assert witness.seen[0] == "caller"
        await run.result()

    host.run_with_runtime(body, workflows=[waits], transform=witness)


def test_threads_pass_their_variables_as_well() -> None:
    witness = Witness()
    tenant.set("opener")
    with keyrun.sync.open_runtime(MemoryStore(), workflows=[asks, waits], transform=witness) as rt:
        tenant.set("caller")
        assert rt.submit(asks, key="k").result() == ["opener"] * 3
        run = rt.submit(waits, key="k")
        witness.seen.clear()
        rt.signal(run.run_id, "go", 1)
        assert witness.seen[0] == "caller"
        run.result()
