"""The terminal hook: the user's `on_terminal`, called with a time limit.

An async hook runs in Trio. A sync hook runs in a thread, so that it does not block the loop. If a
sync hook returns an awaitable, the runtime awaits it in Trio.

If the hook raises any exception, the call has failed, also `SystemExit`, `GeneratorExit` and the
`CancelledError` of asyncio. Only `KeyboardInterrupt` ends the runtime.
"""

import functools
import inspect
from collections.abc import Callable
from typing import NamedTuple

import trio

from keyrun.runtime.host.outside import Outside, at_work
from keyrun.runtime.redaction import Redaction
from keyrun.runtime.texts import named
from keyrun.runtime.user_errors import is_fatal, is_user_error
from keyrun.runtime.values import RunOutcome

Hook = Callable[[RunOutcome], object]
"""An async function, or a sync function, which runs in a thread."""


class FailedCall(NamedTuple):
    """Why a call of the hook has to be repeated."""

    reason: str
    error: BaseException | None


class TerminalHook:
    """Calls the hook. At most `at_once` sync hooks run at once."""

    def __init__(
        self,
        function: Hook,
        timeout: float,
        at_once: int,
        outside: Outside | None,
        redaction: Redaction,
    ) -> None:
        self._function = function
        self._redaction = redaction
        self.timeout = timeout
        """Seconds for one call. The thread of a sync hook cannot be stopped."""
        self.in_thread = not is_async(function)
        self._threads = trio.CapacityLimiter(at_once)
        self._outside = outside

    async def call(self, outcome: RunOutcome) -> FailedCall | None:
        """Call the hook. Return None if it returned, or why the call failed."""
        try:
            with trio.move_on_after(self.timeout) as scope:
                await self._run(outcome)
        except BaseException as error:
            if is_user_error(error):
                return FailedCall(f"raised {named(error, self._redaction)}", error)
            if not is_fatal(error):
                # The runtime closes. It cancelled the call, and the hook may have raised an error
                # of its own beside the cancellation, which must not leave the runtime.
                await trio.lowlevel.checkpoint_if_cancelled()
            raise
        if scope.cancelled_caught:
            return FailedCall(f"did not return within its hook_timeout of {self.timeout:g} s", None)
        return None

    async def _run(self, outcome: RunOutcome) -> None:
        if self.in_thread:
            # In a tuple, because Trio refuses an awaitable that comes out of a thread.
            with at_work(self._outside, outcome, in_thread=True):
                (returned,) = await trio.to_thread.run_sync(
                    lambda: (self._function(outcome),), limiter=self._threads
                )
        else:
            returned = self._function(outcome)
        if inspect.isawaitable(returned):
            await returned


def is_async(function: Callable[..., object]) -> bool:
    """Return whether a call of `function` returns a coroutine: whether it is an async function or
    method, an object whose `__call__` is async, or a `functools.partial` of one of them."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004
    )
