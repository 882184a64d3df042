"""Messaging: what a runtime offers to those who send something to runs that wait for it."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from keyrun.runtime.admission import check_run_id
from keyrun.runtime.errors import UnknownRun
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.limits import Limits
from keyrun.runtime.values import Priority
from keyrun.runtime.waiting.receiving import check_channel
from keyrun.runtime.waiting.signals import Delivery
from keyrun.runtime.wording import check_text
from keyrun.runtime.workflow import Workflow

if TYPE_CHECKING:
    from keyrun.runtime.engine import Engine
    from keyrun.runtime.runtime import Runtime

I = TypeVar("I")  # noqa: E741 (the input)
T = TypeVar("T")

ORIGIN = "message"
"""The origin of runs that a message has started."""


class Messaging:
    """The part of a runtime that reaches runs which are under way."""

    _engine: "Engine"

    async def signal(
        self,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        replace: bool = False,
        signal_id: str | None = None,
    ) -> Delivery:
        """Send a run something that it waits for with `ctx.wait_signal(name)`, or will wait for.

        Signals of one name are taken in the order in which they came; with `replace` this one takes
        the place of those that were not taken yet. The same `signal_id` again changes nothing, and
        raises nothing if the run has taken it and ended. Returns when it is durable. Raises
        `UnknownRun`, or `RunEnded`."""
        _check(name, signal_id)
        encoded = self._engine.codec.encode(payload)
        return await self._engine.signals.send(
            run_id, name, encoded, replace=replace, signal_id=signal_id
        )

    async def submit_or_signal(
        self,
        workflow: Workflow[I, T],
        input: I = None,  # type: ignore[assignment]  # noqa: A002
        *,
        key: str,
        run_id: str,
        name: str,
        payload: Any = None,
        signal_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Iterable[str] = (),
        priority: Priority = Priority.NORMAL,
        limits: Limits | None = None,
    ) -> RunHandle[T]:
        """Send a run a signal; if there is no run of this id, start one that begins with the
        signal, in one commit. `newly_submitted` of the handle says which.

        Of a run that is there, `input` and what follows `signal_id` are of no matter; under another
        key or workflow it raises `InputMismatch`, and if it has ended, `RunEnded`. Returns when the
        signal is durable. Starting one waits under backpressure, as `submit` does."""
        _check(name, signal_id)
        check_run_id(run_id)
        engine = self._engine
        admission, encoded = engine.admission, engine.codec.encode(payload)
        described = admission.describe(
            workflow, input, key, run_id, headers, tags, priority, limits, 0
        )
        described.origin = ORIGIN
        handle = cast("Runtime", self)
        if not engine.recovered:
            await engine.counted.wait()
        while True:
            # Nothing may be awaited between this and the admission that yields to another.
            known = await admission.known(described, any_input=True)
            if known is None and engine.backlog.full(key):
                await engine.backlog.wait_for_room(described)
            elif known is None:
                group = admission.admit(described)
                engine.signals.begin_with(group, described, name, encoded, signal_id)
                await group.wait()
                return RunHandle(handle, described, True)
            else:
                if known.group is not None:
                    await known.group.wait()
                about = known.submission
                try:
                    await engine.signals.send(
                        run_id, name, encoded, signal_id=signal_id, only_to=about.number
                    )
                except UnknownRun:
                    # It was forgotten in between: there is another by now, or this starts it.
                    continue
                return RunHandle(handle, about, False)

    async def approve(self, run_id: str, gate: str, *, by: str, comment: str = "") -> None:
        """Let a run pass that waits at `ctx.approval(gate)`. Who did, when and why is in its
        history. Raises `GateNotWaiting` if it does not wait there."""
        await self._decide(run_id, gate, True, by, comment)

    async def reject(self, run_id: str, gate: str, *, by: str, comment: str = "") -> None:
        """Have `ctx.approval(gate)` raise `ApprovalRejected`."""
        await self._decide(run_id, gate, False, by, comment)

    async def _decide(self, run_id: str, gate: str, approved: bool, by: str, comment: str) -> None:
        if not isinstance(gate, str) or not gate:
            raise ValueError(f"gate must be a non-empty string, got {gate!r}")
        if not isinstance(by, str) or not by:
            raise ValueError(f"by must say who decides, got {by!r}")
        if not isinstance(comment, str):
            raise TypeError(f"comment must be a string, got {comment!r}")
        for what, text in (("gate", gate), ("by", by), ("comment", comment)):
            check_text(text, what)
        await self._engine.signals.decide(run_id, gate, [approved, by, comment])


def _check(name: str, signal_id: str | None) -> None:
    check_channel(name)
    if signal_id is not None:
        check_channel(signal_id, "signal_id")
