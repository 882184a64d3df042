"""Rate limits: at most `count` calls in `per` seconds, spread evenly, over all runs."""

from typing import Any

import attrs
import trio


@attrs.frozen
class RateLimit:
    """At most `count` calls `per` so many seconds. `burst` is how many may come at once after a
    quiet time, by default a twentieth of `count`, at least one."""

    count: float = attrs.field()
    per: float = attrs.field(default=1.0, kw_only=True)
    burst: int | None = attrs.field(default=None, kw_only=True)

    @count.validator
    @per.validator
    def _positive(self, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{attribute.name} must be positive, got {value!r}")

    @burst.validator
    def _whole(self, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if value is not None and (isinstance(value, bool) or not value >= 1):
            raise ValueError(f"burst must be at least 1, got {value!r}")

    @property
    def room(self) -> int:
        """How many may come at once."""
        return self.burst or max(1, int(self.count / 20))


class Bucket:
    """A token bucket, kept as the time at which it would be full: with so much of a second per
    token it holds what fits between now and then."""

    def __init__(self, rate: RateLimit) -> None:
        self._pause = rate.per / rate.count
        self._depth = self._pause * (rate.room - 1)
        self._full_at = -1e300
        self._line = trio.Lock()
        self.waiting = 0
        """How many wait for a token."""

    def take_nowait(self, now: float) -> bool:
        """Take a token if there is one, and nobody waits for it."""
        full_at = self._full_at
        # What is due within rounding is due.
        if self.waiting or full_at - now > self._depth + 1e-9:
            return False
        self._full_at = (full_at if full_at > now else now) + self._pause
        return True

    def give_back(self) -> None:
        """Return a token that was not used."""
        self._full_at -= self._pause

    def take_late(self, now: float) -> bool:
        """Take a token for a call that was given one before and had to wait for something else,
        whoever waits for one."""
        if self._full_at - now > self._depth + 1e-9:
            return False
        self._full_at = max(self._full_at, now) + self._pause
        return True

    async def take(self) -> None:
        """Wait for a token, first come first served."""
        self.waiting += 1
        try:
            async with self._line:
                due = self._full_at - self._depth
                if due > trio.current_time():
                    await trio.sleep_until(due)
                self._full_at = max(self._full_at, trio.current_time(), due) + self._pause
        finally:
            self.waiting -= 1
