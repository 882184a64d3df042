"""Delivery: calls the terminal hook for every entry of the outbox.

Rules:

- The hook is called for the ends of one key in their order, one at a time. If a call fails, the
  ends behind it wait, and the call is repeated with backoff.
- No call begins while it is not certain that this process owns the store.
- Keys do not wait for each other, except that at most `hook_calls` calls run at once. At most half
  of them are repeated calls, so that a hook that fails for some keys does not hold up the others.
- Memory does not grow with the outbox. It holds the keys that are being delivered, up to
  `hook_window` keys that are ready, and up to `hook_backoffs` keys in backoff. A pass over the keys
  in the store finds the others.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

import trio

from keyrun.runtime.events.logs import log_key, title
from keyrun.runtime.host.due_loop import DueLoop
from keyrun.runtime.metrics import Metrics
from keyrun.runtime.policies.retry import Retry
from keyrun.runtime.queue.hook import FailedCall, TerminalHook
from keyrun.runtime.queue.outbox import Outbox, OutboxEntry, StoredOutcome
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.redaction import Redaction
from keyrun.runtime.texts import named
from keyrun.runtime.tuning import Tuning
from keyrun.runtime.values import RunOutcome

BACKOFF = Retry.exponential(base=0.5, max_delay=60.0)
PASS_INTERVAL = 60.0
"""Seconds between two passes that look for keys in backoff which memory has no room for."""


class KeyDelivery:
    """The delivery of the ends of one key, as memory knows it. The entries are in the store."""

    __slots__ = ("attempts", "idle", "key", "position", "removing")

    def __init__(self, key: str) -> None:
        self.key = key
        self.attempts = 0
        """Failed calls for the oldest end."""
        self.position = 0
        """Sequence number of the last entry that is done: delivered, or damaged."""
        self.removing = 0
        """Entries whose removal is staged. Until it is durable, the store still shows them, and
        only `position` says that they are done."""
        self.idle = False
        """Whether there was nothing more to deliver."""


class HookCall:
    """A call of the hook that runs."""

    __slots__ = ("about", "began", "reported")

    def __init__(self, outcome: RunOutcome) -> None:
        self.about = outcome.run_id, outcome.key, outcome.workflow
        self.began = trio.current_time()
        self.reported = False


class HookDelivery:
    """Delivers the entries of an outbox to the hook."""

    def __init__(
        self,
        outbox: Outbox,
        hook: TerminalHook,
        *,
        namespace: bytes,
        decode_result: Callable[[str, int, bytes], Any],
        redaction: Redaction,
        fail: Callable[[Exception], None],
        trusted: Callable[[], Awaitable[None]],
        tuning: Tuning,
        metrics: Metrics | None,
        wall: Callable[[], float],
    ) -> None:
        self._at_once = tuning.hook_calls
        self._again_at_once = max(1, tuning.hook_calls // 2)
        self._window = tuning.hook_window
        self._max_backing_off = tuning.hook_backoffs
        self._outbox = outbox
        self._hook = hook
        self._namespace = namespace
        self._decode_result = decode_result
        self._redaction = redaction
        self._fail = fail
        self._trusted = trusted
        """Returns when it is certain that this process owns the store. No call begins before."""
        self._metrics = metrics
        self._wall = wall
        self._keys: dict[str, KeyDelivery] = {}
        self._ready: deque[KeyDelivery] = deque()
        """Keys whose oldest end has not been tried."""
        self._again: deque[KeyDelivery] = deque()
        """Keys whose backoff is over."""
        self._backing_off: list[tuple[float, int, KeyDelivery]] = []
        """A heap by the time of the next call."""
        self._backoffs = 0
        self._first_calls = 0
        self._repeated_calls = 0
        self.calls: dict[HookCall, None] = {}
        """The calls that run, in the order of their beginning."""
        self._damaged: set[bytes] = set()
        """Entries that were reported as damaged."""
        self._cursor: bytes | None = b""
        """How far the pass over the keys in the store has come; None between two passes."""
        self._missed = False
        """Whether the store may have keys that neither memory nor this pass knows."""
        self._dropped = False
        """Whether memory had no room for a key in backoff."""
        self._next_pass = -inf
        self._loop = DueLoop(self._start_due)
        self._nursery: trio.Nursery | None = None
        self._tried = trio.Event()

    def add(self, key: str) -> None:
        """Deliver an end of `key` that has become durable."""
        known = self._keys.get(key)
        if known is None:
            if len(self._ready) < self._window // 2:
                self._make_ready(key)
            else:
                # The other half is for keys from the store, so that new ends do not starve them.
                self._missed = True
        elif known.idle:
            known.idle = False
            self._ready.append(known)
        else:
            return
        self._loop.wake()

    async def tried(self) -> None:
        """Return when every end has been tried that does not wait for its next call, or for an
        earlier end of its key."""
        while not self._all_tried():
            self._tried = trio.Event()
            await self._tried.wait()

    def _all_tried(self) -> bool:
        return not (self._ready or self._first_calls or self._missed or self._cursor is not None)

    async def run(self) -> None:
        """Deliver until cancelled."""
        await self._outbox.converted()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self._loop.run()

    async def _start_due(self) -> float:
        """Start the calls that are due. Return when the next call or the next report is due."""
        assert self._nursery is not None
        now = trio.current_time()
        while self._backing_off and self._backing_off[0][0] <= now:
            self._again.append(heappop(self._backing_off)[2])
        if len(self._ready) <= self._window // 2:
            await self._read_keys()
        if self._all_tried():
            self._tried.set()
        again = min(len(self._again), self._again_at_once - self._repeated_calls)
        free = self._at_once - self._first_calls - self._repeated_calls
        for _ in range(min(len(self._ready) + again, free)):
            following = self._take()
            assert following is not None
            self._nursery.start_soon(self._deliver, following)
        return min(self._next_due(), self._report_overruns())

    def _next_due(self) -> float:
        due = self._backing_off[0][0] if self._backing_off else inf
        return min(due, self._next_pass) if self._dropped else due

    async def _read_keys(self) -> None:
        """Continue the pass over the keys in the store until enough of them are ready."""
        if self._cursor is None:
            if not self._missed and not (self._dropped and trio.current_time() >= self._next_pass):
                return
            self._cursor = b""
        if self._cursor == b"":
            self._missed = self._dropped = False
            self._next_pass = trio.current_time() + PASS_INTERVAL
        looked_at = 0
        while len(self._ready) < self._window:
            found = await self._outbox.next_key(self._cursor)
            if found is None:
                self._cursor = None
                if self._missed:
                    self._loop.wake()
                return
            key, self._cursor = found
            if key not in self._keys:
                self._make_ready(key)
            looked_at += 1
            if looked_at % self._window == 0:
                await trio.lowlevel.checkpoint()

    def _make_ready(self, key: str) -> None:
        known = self._keys[key] = KeyDelivery(key)
        self._ready.append(known)

    def _take(self) -> KeyDelivery | None:
        """Return the key to deliver next, and count its call as running."""
        if self._again and self._repeated_calls < self._again_at_once:
            self._repeated_calls += 1
            return self._again.popleft()
        if self._ready:
            self._first_calls += 1
            return self._ready.popleft()
        return None

    async def _deliver(self, following: KeyDelivery | None) -> None:
        """Deliver the oldest end of a key, then of the next key, while keys are ready."""
        try:
            while following is not None:
                repeated = following.attempts > 0
                try:
                    await self._deliver_first(following)
                finally:
                    if repeated:
                        self._repeated_calls -= 1
                    else:
                        self._first_calls -= 1
                if len(self._ready) <= self._window // 2:
                    if self._missed or self._cursor is not None:
                        self._loop.wake()
                    elif self._all_tried():
                        self._tried.set()
                await trio.lowlevel.checkpoint()
                following = self._take()
        except Exception as error:
            self._fail(error)
        finally:
            self._loop.wake()

    async def _deliver_first(self, known: KeyDelivery) -> None:
        await self._trusted()
        entry, stored = await self._first(known)
        if entry is None or stored is None:
            known.idle = True
            known.attempts = 0
            self._forget_idle(known)
            return
        failed = await self._call(stored)
        self._count(stored, failed)
        if failed is None:
            known.attempts = 0
            known.position = entry.sequence
            group = self._outbox.remove(entry)
            if group is not None:
                known.removing += 1
                group.when_durable(self._removed, known)
            self._ready.append(known)
        else:
            self._back_off(known, stored, failed)

    async def _first(self, known: KeyDelivery) -> tuple[OutboxEntry | None, StoredOutcome | None]:
        """Return the oldest entry of a key that can be read. A damaged entry does not hold up the
        others: it stays in the store, and the next open tries it again."""
        while (entry := await self._outbox.first(known.key, known.position)) is not None:
            try:
                return entry, await self._outbox.read(entry)
            except DAMAGE as error:
                known.position = entry.sequence
                known.attempts = 0
                if entry.record not in self._damaged:
                    self._damaged.add(entry.record)
                    said = "cannot be delivered to on_terminal, and is tried again at the next open"
                    log_key(known.key, "hook_failed", f"an end of key {known.key} {said}: {error}")
        return None, None

    async def _call(self, stored: StoredOutcome) -> FailedCall | None:
        try:
            outcome = self._outcome(stored)
        except Exception as error:
            said = named(error, self._redaction)
            return FailedCall(f"was not called: the result cannot be read: {said}", error)
        call = HookCall(outcome)
        self.calls[call] = None
        if self._hook.in_thread:
            # The loop has to report an overrun of this call.
            self._loop.wake()
        try:
            return await self._hook.call(outcome)
        finally:
            del self.calls[call]

    def _count(self, stored: StoredOutcome, failed: FailedCall | None) -> None:
        if self._metrics is None:
            return
        self._metrics.hook_calls["delivered" if failed is None else "failed"] += 1
        if failed is None and stored.status.ended_at is not None:
            self._metrics.hook_lag.add(max(0.0, self._wall() - stored.status.ended_at))

    def _back_off(self, known: KeyDelivery, stored: StoredOutcome, failed: FailedCall) -> None:
        known.attempts += 1
        delay = BACKOFF.delay_for(str(stored.number), "on_terminal", known.attempts)
        run_id, key, workflow = stored.run_id, stored.key, stored.workflow
        said = f"on_terminal {failed.reason} for {title(run_id, key, workflow)}"
        log_key(
            key,
            "hook_failed",
            f"{said}; it is called again in {delay:.1f} s",
            run_id=run_id,
            workflow=workflow,
            error=failed.error,
            redaction=self._redaction,
        )
        if len(self._backing_off) >= self._max_backing_off and not known.removing:
            del self._keys[key]
            self._dropped = True
        else:
            self._backoffs += 1
            due = trio.current_time() + delay
            heappush(self._backing_off, (due, self._backoffs, known))
        self._loop.wake()

    def _removed(self, known: KeyDelivery) -> None:
        known.removing -= 1
        self._forget_idle(known)

    def _forget_idle(self, known: KeyDelivery) -> None:
        if known.idle and not known.removing and self._keys.get(known.key) is known:
            del self._keys[known.key]

    def _outcome(self, stored: StoredOutcome) -> RunOutcome:
        status, result = stored.status, None
        assert status.ended_at is not None
        if status.result is not None:
            result = self._decode_result(stored.workflow, stored.version, status.result)
        return RunOutcome(
            run_id=stored.run_id,
            key=stored.key,
            workflow=stored.workflow,
            state=status.state,
            result=result,
            reason=status.reason,
            failure=status.failure,
            step=status.step,
            steps_done=status.steps_done,
            headers=stored.headers,
            ended_at=status.ended_at,
            generation=status.generation,
            outcome_id=stored.outcome_id(self._namespace),
        )

    def _report_overruns(self) -> float:
        """Report each sync hook once that has exceeded its timeout while its thread still runs.
        Return when the next timeout is due."""
        due = inf
        if not self._hook.in_thread:
            return due
        for call in self.calls:
            over = call.began + self._hook.timeout
            if not call.reported and over <= trio.current_time():
                call.reported = True
                said = (
                    f"on_terminal for {title(*call.about)} has not returned within "
                    f"its hook_timeout of {self._hook.timeout:g} s; its thread cannot be stopped, "
                    "and later ends of the key wait for it"
                )
                run_id, key, workflow = call.about
                log_key(
                    key,
                    "hook_overrun",
                    said,
                    run_id=run_id,
                    workflow=workflow,
                    level=logging.WARNING,
                )
            elif not call.reported:
                due = min(due, over)
        return due
