"""What a type checker knows of a proxy: all that it knows of its class. `make types` looks."""

from typing import assert_type

import pytest
from trio.testing import MockClock

from keyrun import Entity
from keyrun.errors import UnknownMethod
from tests.runtime.accounts import Account, opened


async def test_a_proxy_has_the_methods_of_its_class_with_their_types(
    autojump_clock: MockClock,
) -> None:
    async with opened() as rt:
        account = rt.entity(Account, "k", request_id="r")
        assert_type(account, Account)
        assert_type(await account.deposit(10), int)
        assert_type(await rt.call(Account, "k", Account.deposit, 5), int)
        # Each of these is an error to a type checker, which would say so if it were none.
        with pytest.raises(TypeError):
            await rt.entity(Account, "k").deposit("much")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await rt.entity(Account, "k").deposit()  # type: ignore[call-arg]
        with pytest.raises(UnknownMethod):
            await rt.entity(Account, "k").withdraw(1)  # type: ignore[attr-defined]
        with pytest.raises(UnknownMethod):
            await rt.call(Account, "k", Entity.idempotency_key)  # type: ignore[call-overload]
