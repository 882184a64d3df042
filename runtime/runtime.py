"""The runtime: submit runs, see how they stand, hold, cancel and wait for them."""

from collections.abc import Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from keyrun.runtime.admission import check_key
from keyrun.runtime.engine import Engine
from keyrun.runtime.entities.calling import Calling
from keyrun.runtime.groups.grouping import Grouping
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.limits import Limits
from keyrun.runtime.quarantine import stays
from keyrun.runtime.records import Standing, Submission
from keyrun.runtime.recovery import deadletters
from keyrun.runtime.recovery.damage import DAMAGE
from keyrun.runtime.schedules.scheduling import Scheduling
from keyrun.runtime.values import Priority, RunStatus
from keyrun.runtime.views.window import Window
from keyrun.runtime.waiting.messaging import Messaging
from keyrun.runtime.workflow import Workflow

if TYPE_CHECKING:
    from keyrun.runtime.views.statistics import RuntimeStatistics

I = TypeVar("I")  # noqa: E741 (the input)
T = TypeVar("T")


class Runtime(Calling, Grouping, Messaging, Scheduling, Window):
    """An open runtime; `open_runtime` makes it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._admission = engine.admission
        self.decode_result = engine.reading.decode_result
        self._control = engine.control

    async def submit(
        self,
        workflow: Workflow[I, T],
        input: I = None,  # type: ignore[assignment]  # noqa: A002
        *,
        key: str,
        run_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Iterable[str] = (),
        priority: Priority = Priority.NORMAL,
        limits: Limits | None = None,
        delay: float = 0,
    ) -> RunHandle[T]:
        """Start a run, and return when it is durable. Under backpressure this waits; a repeat of
        what was submitted before gives the run that is there."""
        described = self._admission.describe(
            workflow, input, key, run_id, headers, tags, priority, limits, delay
        )
        if run_id is not None or self._crowded(key):
            return await self._enter(described, wait=True)
        await self._admission.admit(described).wait()
        return RunHandle(self, described, True)

    async def submit_nowait(
        self,
        workflow: Workflow[I, T],
        input: I = None,  # type: ignore[assignment]  # noqa: A002
        *,
        key: str,
        run_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Iterable[str] = (),
        priority: Priority = Priority.NORMAL,
        limits: Limits | None = None,
        delay: float = 0,
    ) -> RunHandle[T]:
        """Like `submit`, but raises `Backpressure` at once instead of waiting for room."""
        described = self._admission.describe(
            workflow, input, key, run_id, headers, tags, priority, limits, delay
        )
        if run_id is not None or self._crowded(key):
            return await self._enter(described, wait=False)
        await self._admission.admit(described).wait()
        return RunHandle(self, described, True)

    def _crowded(self, key: str) -> bool:
        """Whether it takes more than a look to know that one more run of a key has room."""
        engine = self._engine
        full = engine.backlog.full(key) or engine.instances is not None
        return full or not engine.recovered

    async def _enter(self, described: Submission, *, wait: bool) -> RunHandle[Any]:
        """Take a run in when there is room, or find the one that is there."""
        engine, admission, key = self._engine, self._admission, described.key
        if not engine.recovered:
            await engine.counted.wait()
        # Nothing may be awaited between this and the admission that yields to another submit.
        known = await admission.known(described)
        while known is None and engine.backlog.full(key):
            if not wait:
                raise engine.backlog.refuse(key)
            await engine.backlog.wait_for_room(described)
            known = await admission.known(described)
        if known is None:
            if engine.instances is not None:
                engine.instances.check(described)
            await admission.admit(described).wait()
            return RunHandle(self, described, True)
        if known.group is not None:
            await known.group.wait()
        return RunHandle(self, known.submission, False)

    async def status(self, run_id: str, *, result: bool = True) -> RunStatus | None:
        """How a run stands, also after its end; None if there is no such run."""
        engine = self._engine
        number = await engine.ledger.find(run_id)
        run = None if number is None else engine.runs.live(number)
        if run is not None and run.standing.state.terminal:
            # An end that is only staged has not happened yet.
            await run.gate()
        return None if number is None else await engine.reading.status(number, result=result)

    def wait_for_end(self, submission: Submission) -> Awaitable[Standing | None]:
        """To be awaited at once: how a run ended, or that it is quarantined; None if it was
        forgotten."""
        engine = self._engine
        if submission.at_hand:
            if engine.closed:
                engine.check_open()
            return engine.awaited.wait(submission.number)
        return self._look_up_end(submission.number)

    async def _look_up_end(self, number: int) -> Standing | None:
        engine = self._engine
        live = engine.runs.live(number)
        if live is None:
            try:
                standing = await engine.ledger.standing(number)
                if standing is not None and standing.state.terminal:
                    return standing
                submission = await engine.ledger.submission(number)
            except DAMAGE as error:
                return Standing.damaged(error)
            if submission is None:
                return None
            held = engine.crashes.quarantined.get(submission.key)
            if held is not None and held.number == number:
                return held.standing
            if standing is not None and standing.quarantine is not None:
                workflow = engine.registry.find(submission.workflow, submission.version)
                if stays(standing.quarantine, workflow):
                    return standing
        elif live.standing.quarantine is not None:
            await live.gate()
            if live.standing.quarantine is not None:
                return live.standing
        return await engine.ended(number)

    async def cancel(self, run_id: str) -> bool:
        """Ask for a run to be cancelled. True while it has not ended, False when it has, or is
        unknown, or has failed and is only being undone. With no step running it is settled when
        this returns."""
        return await self._control.cancel(run_id)

    async def pause(self, run_id: str) -> bool:
        """Let the running step finish, then hold the run until `resume`."""
        return await self._control.pause(run_id, True)

    async def resume(self, run_id: str) -> bool:
        """Let a paused run go on."""
        return await self._control.pause(run_id, False)

    async def pause_key(self, key: str) -> None:
        """Hold all runs of a key."""
        await self._control.pause_key(check_key(key), True)

    async def resume_key(self, key: str) -> None:
        """Let the runs of a key go on."""
        await self._control.pause_key(check_key(key), False)

    async def pause_all(self) -> None:
        """Hold everything."""
        await self._control.pause_key("", True)

    async def resume_all(self) -> None:
        """Let everything go on that is not paused by itself."""
        await self._control.pause_key("", False)

    async def redrive(self, run_id: str) -> int:
        """Give a failed or quarantined run another chance, from the step that failed and with
        today's code. Returns its generation."""
        return await deadletters.redrive(self._engine, run_id)

    async def forget(self, run_id: str) -> None:
        """Remove all that is stored of a run that has ended."""
        await deadletters.forget(self._engine, run_id)

    async def release_key(self, key: str) -> bool:
        """Lift the quarantine of a key, or of its first run, which is redriven then. Says whether
        there was anything to lift."""
        return await deadletters.release(self._engine, check_key(key))

    async def discard_outcomes(self) -> int:
        """Drop the ends that wait for `on_terminal`, and return their number. Without a hook, the
        store also stops keeping ends, until it is opened with a hook again."""
        engine = self._engine
        engine.check_open()
        return await engine.outbox.discard(collecting=engine.delivery is not None)

    def _queues(self) -> dict[str, int]:
        return {each.step: each.waiting for each in self._engine.turnstiles.statuses()}

    def statistics(self) -> "RuntimeStatistics":
        """A snapshot."""
        from keyrun.runtime.views.statistics import statistics_of

        return statistics_of(self._engine)
