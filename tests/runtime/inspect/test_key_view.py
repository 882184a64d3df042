"""One key: its queue, the reason why it does not move, its state and its entities."""

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, Entity, State, current_step, entity, open_reader, step, workflow
from keyrun.status import Cause, StoredValue, Unshown
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime
from tests.runtime.inspect.test_pages import MOST, CountingStore


@entity
class Account(Entity):
    async def open(self, owner: str, balance: int) -> None:
        self.state["owner"] = owner
        self.state["balance"] = balance


@step
async def visit() -> None:
    state = current_step().state
    state["visits"] = state.get("visits", 0) + 1


@workflow
async def hold(ctx: Context, gate: str) -> None:
    await ctx.step(visit)
    await ctx.approval(gate)


class Backwards:
    """A transform that only its owner can undo."""

    def wrap(self, data: bytes, /) -> bytes:
        return b"\xc1" + data[::-1]

    def unwrap(self, data: bytes, /) -> bytes:
        return data[:0:-1]


async def test_a_view_of_a_key_has_its_queue_its_holder_and_its_values(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[hold], entities=[Account], evict_after=0) as rt:
        await rt.call(Account, "alice", Account.open, "Alice", 7)
        for at in range(5):
            await rt.submit(hold, "manager", key="alice", run_id=f"r{at}")
        await rt.submit(hold, "manager", key="alice", run_id="later", delay=1000)
        await trio.sleep(1)
        async with open_reader(store) as reader:
            for source in (rt, reader):
                view = await source.key_view("alice", limit=3)
                assert view.status is not None
                assert (view.key, view.status.runs, view.status.head) == ("alice", 5, "r0")
                assert (view.why.cause, view.why.run_id) == (Cause.APPROVAL, "r0")
                assert (view.paused, view.all_paused) == (False, False)
                assert [run.run_id for run in view.runs] == ["r0", "r1", "r2"]
                assert [run.state for run in view.runs] == [State.WAITING] + [State.PENDING] * 2
                rest = await source.key_view("alice", limit=3, cursor=view.cursor)
                assert [run.run_id for run in rest.runs] == ["r3", "r4"]
                assert rest.cursor is None
                assert view.state is not None
                assert (view.state.value, view.state.unshown) == ({"visits": 1}, None)
                (account,) = view.entities
                assert account.name == "Account"
                assert account.state.value == {"owner": "Alice", "balance": 7}
                hidden = await source.key_view("alice", max_value=3)
                size = account.state.size
                assert hidden.entities[0].state == StoredValue(
                    value=None, size=size, unshown=Unshown.TOO_LARGE
                )
                with pytest.raises(ValueError, match="a view of the key 'bob'"):
                    await source.key_view("bob", cursor=view.cursor)
                empty = await source.key_view("bob")
                assert (empty.status, empty.state, empty.entities) == (None, None, ())
                assert empty.why.cause is Cause.IDLE
        await rt.pause_key("alice")
        await rt.pause_all()
        view = await rt.key_view("alice")
        assert (view.paused, view.all_paused) == (True, True)


async def test_a_reader_without_the_transform_says_that_values_are_encrypted(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(
        store, workflows=[hold], entities=[Account], transform=Backwards()
    ) as rt:
        await rt.call(Account, "alice", Account.open, "Alice", 7)
        await rt.submit(hold, "manager", key="alice", run_id="r")
        await trio.sleep(1)
        own = await rt.key_view("alice")
        assert own.state is not None
        assert own.state.value == {"visits": 1}
        async with open_reader(store) as reader:
            view = await reader.key_view("alice")
            assert view.state is not None
            assert view.state.value is None
            assert view.state.unshown is Unshown.ENCRYPTED
            assert view.entities[0].state.unshown is Unshown.ENCRYPTED


async def test_a_view_of_a_deep_queue_is_bounded(autojump_clock: MockClock) -> None:
    store = CountingStore()
    async with open_test_runtime(store, workflows=[hold]) as rt:
        for _ in range(5000):
            await rt.submit_nowait(hold, "manager", key="deep")
        await trio.sleep(1)
        async with open_reader(store) as reader:
            store.read = 0
            view = await reader.key_view("deep", limit=1000)
            assert store.read < MOST
            assert view.cursor is not None
            assert len(view.runs) > 100
