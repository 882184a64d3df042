"""Requests that last: streams, batches, long polls and the channels of Python clients.

A token may be replaced, a role changed and a user logged out while such a request is under way. So
the guard is asked again and again, and a request that it would refuse now ends.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from keyrun.control.guard import Guard
from keyrun.control.request import Request
from keyrun.control.roles import Caller

T = TypeVar("T")


async def while_admitted(
    guard: Guard,
    request: Request,
    work: Callable[[], Awaitable[T]],
    check: Callable[[Caller], None],
) -> T:
    """Do the work of a request that lasts. Cancel it, and raise what refuses the request, when the
    guard no longer admits the request, or `check` rejects who calls now."""
    if request.peer is not None:
        # The socket can be opened only by its owner, whose role does not change.
        return await work()
    answers: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            nonlocal failure
            try:
                while True:
                    await anyio.sleep(guard.every)
                    check(await guard.admit(request))
            except Exception as error:
                failure = error
                tasks.cancel_scope.cancel()

        tasks.start_soon(ask)
        try:
            answers.append(await work())
        except Exception as error:
            failure = error
        tasks.cancel_scope.cancel()
    if answers:
        return answers[0]
    assert failure is not None
    raise failure
