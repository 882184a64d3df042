"""Rate limits: at most `count` calls in `per` seconds, spread evenly, over all runs."""

import attrs
import trio

from keyrun.runtime.validators import at_least, if_set, positive_and_finite


@attrs.frozen
class RateLimit:
    """Limit the calls of a function to `count` in `per` seconds, spread evenly. Calls start first
    come, first served. After a restart of the process the whole `burst` is available again."""

    count: float = attrs.field(validator=positive_and_finite)
    """The number of calls."""
    per: float = attrs.field(default=1.0, kw_only=True, validator=positive_and_finite)
    """The seconds in which that number of calls may start."""
    burst: int | None = attrs.field(default=None, kw_only=True, validator=if_set(at_least(1)))
    """The number of calls that may start at once after a pause. Default: a twentieth of `count`,
    at least 1."""

    @property
    def room(self) -> int:
        """Return the number of calls that may start at once."""
        return self.burst or max(1, int(self.count / 20))


class Bucket:
    """A token bucket. Its level is kept as the time at which the bucket will be full again."""

    def __init__(self, rate: RateLimit) -> None:
        self.rate = rate
        self._pause = rate.per / rate.count
        self._depth = self._pause * (rate.room - 1)
        self._full_at = -1e300
        self._queue = trio.Lock()
        self.waiting = 0
        """The number of calls that wait for a token."""

    def take_nowait(self, now: float) -> bool:
        """Take a token if there is one and no call waits for it."""
        full_at = self._full_at
        # The tolerance is for rounding.
        if self.waiting or full_at - now > self._depth + 1e-9:
            return False
        self._full_at = (full_at if full_at > now else now) + self._pause
        return True

    def give_back(self) -> None:
        """Return a token that was not used."""
        self._full_at -= self._pause

    def take_late(self, now: float) -> bool:
        """Take a token, before all calls that wait, for a call that had one, gave it back and had
        to wait for something else."""
        if self._full_at - now > self._depth + 1e-9:
            return False
        self._full_at = max(self._full_at, now) + self._pause
        return True

    async def take(self) -> None:
        """Wait for a token, first come first served."""
        self.waiting += 1
        try:
            async with self._queue:
                due = self._full_at - self._depth
                if due > trio.current_time():
                    await trio.sleep_until(due)
                self._full_at = max(self._full_at, trio.current_time(), due) + self._pause
        finally:
            self.waiting -= 1
