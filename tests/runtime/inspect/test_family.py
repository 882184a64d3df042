"""The family of a run: its parent, children, group and schedule."""

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, State, open_reader, workflow
from keyrun.groups import Member
from keyrun.schedules import Every
from keyrun.status import Family, RunLink
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime


@workflow
async def child(ctx: Context, seconds: float) -> None:
    await ctx.sleep(seconds)


@workflow
async def parent(ctx: Context, children: int) -> None:
    for at in range(children - 1):
        await ctx.child(child, 0.0, key=f"child-{at}")
    await ctx.child(child, 1000.0, key=f"child-{children - 1}")


async def test_a_run_knows_its_children_and_they_know_their_parent(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[parent, child]) as rt:
        await rt.submit(parent, 5, key="p", run_id="p")
        await trio.sleep(10)
        async with open_reader(store) as reader:
            for source in (rt, reader):
                found = await source.family("p")
                assert found is not None
                assert (found.parent, found.group, found.schedule) == (None, None, None)
                assert [each.key for each in found.children] == [f"child-{at}" for at in range(5)]
                states = [each.state for each in found.children]
                assert states == [State.SUCCEEDED] * 4 + [State.WAITING]
                assert found.cursor is None
                own = await source.family(found.children[0].run_id)
                link = RunLink(run_id="p", key="p", workflow="parent", state=State.WAITING)
                assert own == Family(
                    parent=link, group=None, schedule=None, children=(), cursor=None
                )
        whole = await rt.family("p")
        assert whole is not None
        await rt.forget(whole.children[1].run_id)
        first = await rt.family("p", limit=2)
        assert first is not None
        assert first.children[1] == RunLink(
            run_id=whole.children[1].run_id, key=None, workflow=None, state=None
        )
        rest = await rt.family("p", limit=2, cursor=first.cursor)
        assert rest is not None
        assert [each.key for each in rest.children] == ["child-2", "child-3"]
        with pytest.raises(ValueError, match="of children of this run"):
            await rt.family(whole.children[2].run_id, cursor=first.cursor)
        assert await rt.family("nobody") is None


async def test_a_run_knows_its_group_and_its_schedule(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[child]) as rt:
        await rt.submit_group("import-7", [Member(child, 0.0, key="a")])
        await rt.schedule("nightly", child, 0.0, key="b", when=Every(60))
        await trio.sleep(100)
        (one,) = await rt.runs(key="a")
        family = await rt.family(one.run_id)
        assert family is not None
        assert (family.group, family.schedule) == ("import-7", None)
        (two, *_) = await rt.runs(key="b")
        family = await rt.family(two.run_id)
        assert family is not None
        assert (family.group, family.schedule) == (None, "nightly")
