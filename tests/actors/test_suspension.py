"""The callback for the first suspension, in tasks that are no workers."""

import pytest
import trio
import trio.testing

from keyrun.actors.pool import Suspension


async def test_the_callback_is_called_once_when_the_code_suspends() -> None:
    suspension, calls = Suspension(), []

    async def code() -> str:
        suspension.callback = lambda: calls.append("suspended")
        calls.append("set")
        await trio.lowlevel.checkpoint()
        calls.append("resumed")
        await trio.lowlevel.checkpoint()
        return "value"

    assert await suspension.carry(code()) == "value"
    assert calls == ["set", "suspended", "resumed"]


async def test_code_that_does_not_suspend_keeps_its_callback() -> None:
    suspension, calls = Suspension(), []

    async def code() -> None:
        suspension.callback = lambda: calls.append("suspended")

    await suspension.carry(code())
    assert suspension.callback is not None
    assert calls == []


async def test_an_error_of_the_callback_is_raised_where_the_code_suspends() -> None:
    suspension, calls = Suspension(), []

    def fail() -> None:
        raise ValueError("from the callback")

    async def code() -> str:
        suspension.callback = fail
        try:
            await trio.sleep_forever()
        except ValueError as error:
            suspension.callback = lambda: calls.append("again")
            await trio.lowlevel.checkpoint()
            return str(error)

    assert await suspension.carry(code()) == "from the callback"
    assert calls == ["again"]


async def test_a_cancellation_reaches_the_code() -> None:
    suspension = Suspension()

    async def code() -> None:
        await trio.sleep_forever()

    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(trio.Cancelled):
            await suspension.carry(code())
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
