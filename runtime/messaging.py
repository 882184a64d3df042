"""Messaging: what a runtime offers to those who send something to runs that wait for it."""

from typing import TYPE_CHECKING, Any

from keyrun.runtime.receiving import check_channel
from keyrun.runtime.signals import Delivery

if TYPE_CHECKING:
    from keyrun.runtime.engine import Engine


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
        the place of those that were not taken yet. The same `signal_id` again changes nothing.
        Returns when it is durable. Raises `UnknownRun`, or `RunEnded`."""
        check_channel(name)
        if signal_id is not None:
            check_channel(signal_id, "signal_id")
        encoded = self._engine.codec.encode(payload)
        return await self._engine.signals.send(
            run_id, name, encoded, replace=replace, signal_id=signal_id
        )

    async def approve(self, run_id: str, gate: str, *, by: str, comment: str = "") -> None:
        """Let a run pass that waits at `ctx.approval(gate)`. Who did, when and why is in its
        history. Raises `GateNotWaiting` if it does not wait there."""
        await self._decide(run_id, gate, True, by, comment)

    async def reject(self, run_id: str, gate: str, *, by: str, comment: str = "") -> None:
        """Have `ctx.approval(gate)` raise `ApprovalRejected`."""
        await self._decide(run_id, gate, False, by, comment)

    async def _decide(self, run_id: str, gate: str, approved: bool, by: str, comment: str) -> None:
        if not isinstance(by, str) or not by:
            raise ValueError(f"by must say who decides, got {by!r}")
        if not isinstance(comment, str):
            raise TypeError(f"comment must be a string, got {comment!r}")
        await self._engine.signals.decide(run_id, gate, [approved, by, comment])
