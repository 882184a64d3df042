"""Where Trio runs for a host that does not run on Trio: as a guest of an asyncio loop, or in a
thread of its own.

Both keep any number of runtimes open. Trio ends when the last of them is left.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import trio
from outcome import Error, Outcome, Value

from keyrun.runtime.faces.calls import Deliver, StandingTasks, ThreadsafePost
from keyrun.runtime.host.outside import OUTSIDE
from keyrun.runtime.runtime import Runtime


class Block:
    """One open runtime on the Trio side: `async with open_runtime(...)`."""

    def __init__(
        self,
        manager: AbstractAsyncContextManager[Runtime],
        opened: Deliver,
        closed: Deliver,
    ) -> None:
        self._manager = manager
        self._opened = opened
        self._closed = closed
        self._left = trio.Event()
        self._scope = trio.CancelScope()
        self._is_open = False
        self._outside = OUTSIDE.get()
        self._context = copy_context()
        """The context variables of the code that opens the runtime, which its steps see."""
        self.tasks = StandingTasks()

    def start(self, nursery: trio.Nursery) -> None:
        """Open the runtime, in the context of the code that made this block."""
        self._context.run(nursery.start_soon, self.run)

    async def run(self) -> None:
        """Keep the runtime open until `leave`, or until it fails."""
        with self._scope:
            await self._keep_open()

    async def _keep_open(self) -> None:
        deliver = self._opened
        self._application_waits()
        try:
            async with self._manager as runtime, trio.open_nursery() as nursery:
                nursery.start_soon(self.tasks.run)
                self._deliver(deliver, Value(runtime))
                deliver, self._is_open = self._closed, True
                await self._left.wait()
                self._application_waits()
                nursery.cancel_scope.cancel()
        except BaseException as error:
            self._deliver(deliver, Error(only(error)))
            if isinstance(error, trio.Cancelled | KeyboardInterrupt):
                raise
        else:
            self._deliver(deliver, Value(None))

    def _application_waits(self) -> None:
        if self._outside is not None:
            self._outside.wait(self, None)

    def _deliver(self, deliver: Deliver, outcome: Outcome[Any]) -> None:
        if self._outside is not None:
            self._outside.resume(self)
        deliver(outcome)

    def leave(self) -> None:
        """Drain the runtime and close it, or stop opening it."""
        self._left.set()
        if not self._is_open:
            self._scope.cancel()


def only(error: BaseException) -> BaseException:
    """Return the one error in groups of one error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _clock() -> trio.abc.Clock | None:
    """Return the clock on which Trio has to run, or None for its own."""
    outside = OUTSIDE.get()
    return None if outside is None else outside.clock


class TrioSide:
    """A run of Trio that keeps runtimes open."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._stop: trio.Event | None = None

    async def _main(self, ready: Callable[[], None]) -> None:
        self._stop = trio.Event()
        async with trio.open_nursery() as self._nursery:
            ready()
            await self._stop.wait()

    def open(self, block: Block) -> None:
        """Open a runtime. Called in Trio's thread."""
        assert self._nursery is not None
        block.start(self._nursery)

    def stop(self) -> None:
        """End Trio. No runtime is open any more. Called in Trio's thread."""
        assert self._stop is not None
        self._stop.set()


class Guest(TrioSide):
    """Trio as the guest of an asyncio loop, in the same thread. There is one for each loop."""

    _of: ClassVar["WeakKeyDictionary[asyncio.AbstractEventLoop, Guest]"] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._context = Context()
        self._function: Callable[[], object] | None = None
        """What Trio has asked for last. It keeps Trio in memory if the loop is closed too early."""
        self._longest_pass = 0.0
        self._clock = _clock()
        self._users = 0
        self._ready: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        try:
            trio.lowlevel.start_guest_run(
                self._main,
                self._now_ready,
                run_sync_soon_threadsafe=self._soon_threadsafe,
                run_sync_soon_not_threadsafe=self._soon,
                done_callback=self._done,
                host_uses_signal_set_wakeup_fd=True,
                restrict_keyboard_interrupt_to_checkpoints=True,
                clock=self._clock,
            )
        except RuntimeError as error:
            raise RuntimeError(
                "Trio runs in this thread already, probably because an earlier event loop was "
                "stopped inside of a block of keyrun.asyncio.open_runtime: leave the block before "
                "the loop stops, or open the runtime with thread=True"
            ) from error

    @classmethod
    async def enter(cls) -> "Guest":
        """Return the guest of the running loop. It is started if there is none. Call `exit` when
        you do not need it any more."""
        loop = asyncio.get_running_loop()
        guest = cls._of.get(loop)
        while guest is not None and not guest._users:
            await asyncio.shield(guest._ended)  # it is ending
            guest = cls._of.get(loop)
        if guest is not None and guest._clock is not _clock():
            raise RuntimeError(
                "a runtime is open on this event loop, on another clock: runtimes in real time and "
                "runtimes of keyrun.testing cannot share a loop"
            )
        if guest is None:
            guest = cls(loop)
            cls._of[loop] = guest
        guest._users += 1
        try:
            await asyncio.shield(guest._ready)
        except BaseException:
            guest._ready.add_done_callback(lambda _: guest._leave())
            raise
        return guest

    async def exit(self) -> None:
        """Release the guest. The last release ends it."""
        self._leave()
        if not self._users:
            await asyncio.shield(self._ended)

    def _leave(self) -> None:
        self._users -= 1
        if not self._users and self._stop is not None:
            self.stop()

    def get_longest_pass(self) -> float:
        """Return for how many seconds Trio has held the loop without a pause, at most."""
        return self._longest_pass

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function. This is Trio's thread, and Trio wakes up when a task becomes ready."""
        function(*args)

    def _now_ready(self) -> None:
        self._ready.set_result(None)

    def _done(self, outcome: Outcome[None]) -> None:
        self._of.pop(self._loop, None)
        self._function = None
        if not self._ready.done():
            self._ready.set_exception(RuntimeError("Trio could not start"))
        if not self._ended.done():
            if isinstance(outcome, Error):
                self._ended.set_exception(outcome.error)
            else:
                self._ended.set_result(None)

    def _soon(self, function: Callable[[], object]) -> None:
        self._loop.call_soon(self._tick, function, context=self._context)

    def _soon_threadsafe(self, function: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._tick, function, context=self._context)
        except RuntimeError:
            if not self._loop.is_closed():  # the watchdog reports a closed loop
                raise

    def _tick(self, function: Callable[[], object]) -> None:
        """Let Trio run until it has nothing to do. Code on the Trio side sees no asyncio loop, as
        on any other host: what needs one fails at once instead of waiting forever."""
        began = self._loop.time()
        self._function = function
        asyncio._set_running_loop(None)
        try:
            function()
        finally:
            asyncio._set_running_loop(self._loop)
            took = self._loop.time() - began
            if took > self._longest_pass:
                self._longest_pass = took


class TrioThread(TrioSide):
    """Trio in a thread of its own. Call `wait_until_ready` before everything else, and `end` in any
    case. Both block."""

    def __init__(self) -> None:
        super().__init__()
        self._ready = threading.Event()
        self.post: ThreadsafePost
        self._clock = _clock()
        self._thread = threading.Thread(target=self._run, name="keyrun", daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Wait until Trio runs."""
        self._ready.wait()

    @property
    def ident(self) -> int | None:
        """Return the identifier of the thread."""
        return self._thread.ident

    def _run(self) -> None:
        trio.run(self._main, self._now_ready, clock=self._clock)

    def _now_ready(self) -> None:
        self.post = ThreadsafePost(trio.lowlevel.current_trio_token())
        self._ready.set()

    def end(self) -> None:
        """End Trio, and wait until the thread has ended."""
        self._ready.wait()
        self.post(self.stop)
        self._thread.join()
