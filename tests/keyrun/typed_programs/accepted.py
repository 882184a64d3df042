"""What type checkers know of a program on Trio."""

from typing import assert_type

import keyrun
from keyrun import State
from keyrun.groups import Member
from keyrun.schedules import Every
from tests.keyrun.typed_programs.definitions import (
    EVERY,
    MEMBERS,
    Account,
    GiftOrder,
    Order,
    checkout,
    maybe,
    reconcile,
)


async def main() -> None:
    async with keyrun.open_runtime(
        "state", workflows=[checkout, reconcile], entities=[Account]
    ) as rt:
        assert_type(rt, keyrun.Runtime)
        run = await rt.submit(checkout, Order("tea"), key="ann", run_id="order-7", delay=5)
        assert_type(await run.result(), str)
        assert_type(await run.result(timeout=5), str)
        assert_type((await run.status()).state, State)
        await rt.submit(checkout, GiftOrder("tea", "ann"), key="ann")
        assert_type(await (await rt.submit(reconcile, key="ann")).result(), int)
        assert_type(await (await rt.submit(maybe, key="ann", tags=["gift"])).result(), bool)
        assert_type(await (await rt.submit_nowait(maybe, Order("a"), key="ann")).result(), bool)
        sent = await rt.submit_or_signal(checkout, Order("a"), key="k", run_id="r", name="paid")
        assert_type(await sent.result(), str)
        await rt.submit_or_signal(reconcile, key="k", run_id="r", name="paid", payload=5)
        await rt.schedule("nightly", reconcile, key="k", when=Every(60))
        await rt.schedule("gifts", checkout, Order("tea"), key="k", when=Every(60), overlap=True)
        await rt.submit_group("g", MEMBERS)
        await rt.submit_group("h", [Member(checkout, Order("a"), key="a"), Member(maybe, key="b")])
        assert_type(await rt.entity(Account, "ann").deposit(5), int)
        assert_type(await rt.call(Account, "ann", Account.deposit, 5, note="gift"), int)
        await rt.call(Account, "ann", "deposit", 5, request_id="r-1", timeout=5)
    async with keyrun.connect("state", workflows=EVERY, call_timeout=5) as client:
        assert_type(client, keyrun.Runtime)
        run = await client.submit(checkout, Order("tea"), key="ann")
        assert_type(await run.result(timeout=5), str)
        assert_type(await client.call(Account, "ann", Account.deposit, 5), int)
        await client.cancel("order-7")
    async with keyrun.connect("https://host/prefix", token="secret"):
        pass
    async with keyrun.open_runtime("state", workflows=EVERY):
        pass
