"""Watching: the progress of a run again and again, whenever it has changed, until it ends."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Self

import trio

from keyrun.runtime.errors import UnknownRun
from keyrun.runtime.views.progress import Progress, Tally
from keyrun.storage import StoreClosed

if TYPE_CHECKING:
    from keyrun.runtime.views.subscription import Events

Look = Callable[[Tally], Awaitable[tuple[Progress | None, Tally]]]


class Watch:
    """An async iterator of `Progress`. It gives how things stand when it is asked: whoever is slow
    misses what was in between, never the end. Without events to wake it, it looks every `interval`
    seconds; with them, at most that often."""

    _over = True

    def __init__(
        self, run_id: str, look: Look, interval: float, events: "Events | None" = None
    ) -> None:
        if isinstance(interval, bool) or not isinstance(interval, int | float) or not interval >= 0:
            raise ValueError(f"interval must be at least 0 seconds, got {interval!r}")
        if events is None and not interval:
            raise ValueError("interval must be positive: a reader has to look again and again")
        self._run_id = run_id
        self._look = look
        self._interval = interval
        self._events = events
        self._tally = Tally()
        self._last: Progress | None = None
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Progress:
        try:
            return await self._next()
        except Exception:
            self.close()
            raise

    async def _next(self) -> Progress:
        if self._over:
            raise StopAsyncIteration
        while True:
            if self._last is not None:
                await self._news()
            elif self._events is not None:
                # From before the first look, so that nothing falls between the two.
                self._events.open()
            found, self._tally = await self._look(self._tally)
            if found is None and self._last is None:
                raise UnknownRun(
                    f"no run has the id {self._run_id!r}, or it was forgotten", run_id=self._run_id
                )
            if found is None:
                raise StopAsyncIteration
            if found != self._last:
                self._last = found
                if found.state.terminal:
                    self.close()
                return found

    async def _news(self) -> None:
        """Return when there may be something new."""
        if self._interval or self._events is None:
            await trio.sleep(self._interval)
        if self._events is not None:
            try:
                await self._events.__anext__()
            except StopAsyncIteration:
                raise StoreClosed(
                    "the runtime was left before the run ended; it goes on when the store is "
                    "opened again"
                ) from None
            self._events.skip()

    def close(self) -> None:
        """Watch no longer. It need not be called: a watch that nobody has any more is closed."""
        self._over = True
        if self._events is not None:
            self._events.close()

    def __del__(self) -> None:
        if not self._over:
            self.close()
