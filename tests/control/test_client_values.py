"""Values: submitted here, through a client or as JSON, a value has one identity and one type."""

from typing import Any

import attrs
import pytest

from keyrun import Context, open_reader, open_runtime, step, workflow
from keyrun.storage import PayloadError
from keyrun.testing import open_test_runtime
from tests.control.clients import linked
from tests.control.test_values import TEXTS, Order, echo, send
from tests.control.world import Account, client_of
from tests.storage.values import same

NAN = (float, float("nan"), '{"$float": "nan"}')


@pytest.mark.parametrize(("declared", "value", "text"), [*TEXTS, NAN], ids=lambda e: ascii(e)[:40])
async def test_a_value_is_the_same_input_here_through_a_client_and_as_json(
    declared: Any, value: Any, text: str, autojump_clock: Any
) -> None:
    flow = echo(declared)
    async with open_test_runtime(workflows=[flow]) as rt, linked(rt) as client:
        http = client_of(rt)
        for first in ("here", "client", "json"):
            new = []
            for way in (first, "here", "client", "json"):
                if way == "json":
                    answer = await send(http, text, first)
                    new.append(answer.json["newly_submitted"])
                else:
                    it: Any = rt if way == "here" else client
                    new.append(
                        (await it.submit(flow, value, key="k", run_id=first)).newly_submitted
                    )
            assert new == [True, False, False, False]
        here, there = await rt.run("client").result(), await client.run("client").result()
        assert type(there) is type(here) is type(value)
        assert there == here or same(there, here)
        status = await client.status("client")
        assert status is not None
        assert type(status.result) is type(value)
        for it in (rt, client):
            assert same(await it.input("here"), await rt.input("json"))


class Xor:
    """A transform, as an encryption is one."""

    def wrap(self, data: bytes) -> bytes:
        return b"secret" + bytes(each ^ 0x55 for each in data)

    def unwrap(self, data: bytes) -> bytes:
        if not data.startswith(b"secret"):
            raise ValueError("not encrypted")
        return bytes(each ^ 0x55 for each in data[6:])


@step
async def ship(order: Order) -> Order:
    return attrs.evolve(order, weight=5.0)


@workflow
async def shipping(ctx: Context, order: Order) -> Order:
    await ctx.wait_signal("go")
    return await ctx.step(ship, order)


async def test_a_client_needs_no_transform_because_the_owner_decodes(
    autojump_clock: Any, tmp_path: Any
) -> None:
    order = Order([], frozenset({"gift"}))
    options: dict[str, Any] = {"workflows": [shipping], "entities": [Account], "transform": Xor()}
    async with open_test_runtime(**options) as rt, linked(rt) as client:
        run = await client.submit(shipping, order, key="k", run_id="r")
        assert not (await rt.submit(shipping, order, key="k", run_id="r")).newly_submitted
        await client.signal("r", "go", {"a": b"1"})
        assert await run.result() == Order([], frozenset({"gift"}), 5.0)
        assert await client.input("r") == await rt.input("r")
        assert await client.call(Account, "k", "deposit", 5) == 5
        here, there = await rt.history("r"), await client.history("r")
        values = [
            [it.value(each.stored) for each in history if each.stored is not None]
            for it, history in ((rt, here), (client, there))
        ]
        assert values[0] == values[1]
        page = await client.history_page("r")
        assert [each.stored for each in page.events] == [each.stored for each in there]
        assert there.records is not None
        http = client_of(rt)
        shown = await http.good("GET", "/v1/runs/r/result")
        assert shown["result"]["weight"] == 5.0


async def test_a_reader_without_the_transform_says_so_and_shows_no_bytes(tmp_path: Any) -> None:
    options: dict[str, Any] = {"workflows": [shipping], "entities": [Account], "transform": Xor()}
    async with open_runtime(tmp_path / "state", **options) as rt:
        await rt.submit(shipping, Order([]), key="k", run_id="r")
        await rt.call(Account, "k2", "deposit", 5)
        async with linked(rt) as client:
            (shown,) = (await client.key_view("k2")).entities
            assert shown.state.value == {"balance": 5}
    async with open_reader(tmp_path / "state") as reader:
        (hidden,) = (await reader.key_view("k2")).entities
        assert (hidden.state.unshown, hidden.state.value) == ("encrypted", None)
        with pytest.raises(PayloadError) as caught:
            await reader.input("r")
        assert "secret" not in str(caught.value)
