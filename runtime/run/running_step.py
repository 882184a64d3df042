"""The running step, as a run knows it: one attempt of a step that has begun."""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from keyrun.runtime.events.feed import Place


class Report:
    """The progress that a step or a workflow has reported last."""

    __slots__ = ("at", "message", "percent", "staged")

    def __init__(self, percent: float, message: str, before: "Report | None") -> None:
        self.percent = float(percent)
        self.message = message
        self.at = 0.0
        """When the runtime received it."""
        self.staged: Place | None = None if before is None else before.staged

    @property
    def content(self) -> tuple[float, str]:
        """Return percent and message."""
        return self.percent, self.message


class RunningStep(Protocol):
    """One attempt of a step. `CurrentStep` is the class of all of them."""

    @property
    def run_id(self) -> str: ...

    @property
    def key(self) -> str: ...

    step: str
    attempt: int
    begun: float
    timeout: float
    until: float | None
    shielded: bool
    over: bool
    progress: Report | None
    sealed_state: bytes | None

    def expire(self, now: float) -> None:
        """Let the attempt time out if it has not suspended and its time is up."""

    def extend(self, seconds: float) -> None:
        """Extend the timeout of the attempt."""

    def store_memo(self) -> None:
        """Stage the memo of the step."""

    def report(self, percent: float, message: str = "") -> None:
        """Report the progress of the attempt."""

    def elapsed(self) -> float:
        """Return the seconds since the attempt began."""

    def is_of(self, run: object) -> bool:
        """Return whether it is a step of `run`."""


running: "ContextVar[RunningStep | None]" = ContextVar("keyrun.current_step", default=None)
"""The step that the current task is part of."""
