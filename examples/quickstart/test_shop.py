"""Tests of the shop on virtual time: days pass in milliseconds. Run them with pytest."""

import pytest
import trio
from shop import DAY, Points, checkout
from trio.testing import MockClock

from keyrun import Runtime
from keyrun.testing import crash_points, open_test_runtime


@pytest.mark.trio
async def test_an_order_without_an_address_is_refunded_after_a_week(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[checkout]) as rt:
        began = trio.current_time()
        run = await rt.submit(checkout, 50, key="alice", run_id="order-1")
        assert await run.result() == "order-1 refunded: no answer"
        assert trio.current_time() - began >= 7 * DAY


@pytest.mark.trio
async def test_a_large_order_that_is_rejected_is_refunded(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[checkout]) as rt:
        run = await rt.submit(checkout, 5000, key="alice", run_id="order-1")
        await rt.signal("order-1", "address", "1 Main Street")
        await trio.sleep(60)
        await rt.reject("order-1", "manager", by="ben", comment="too expensive")
        assert await run.result() == "order-1 refunded: too expensive"


@pytest.mark.trio
async def test_an_order_is_shipped_wherever_the_process_crashes(
    autojump_clock: MockClock,
) -> None:
    async def scenario(rt: Runtime) -> tuple[str, int]:
        run = await rt.submit(checkout, 50, key="alice", run_id="order-1")
        await rt.signal("order-1", "address", "1 Main Street", signal_id="address")
        result = await run.result()
        return result, await rt.entity(Points, "alice", request_id="order-1").add(5)

    for point in crash_points():
        ended = await point.run(scenario, workflows=[checkout], entities=[Points])
        assert ended == ("order-1 shipped to 1 Main Street", 5)
