"""Direct calls: submits and waits for the end of a run, which take no task on the Trio side.

These are the calls of every run. Their functions are called in Trio's thread, and the commit or the
run table settles the outcome.
"""

from enum import Enum
from typing import Any

from outcome import Error, Value

from keyrun.runtime.faces.calls import Deliver
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.records.submission import Submission
from keyrun.runtime.runs import End
from keyrun.runtime.runtime import Runtime
from keyrun.runtime.waiting.run_end import end_status
from keyrun.storage.errors import StoreError


class NeedsTask(Enum):
    """Delivered instead of an outcome: the call has to wait, or to read more."""

    IT_DOES = "it does"


NEEDS_TASK = NeedsTask.IT_DOES


class Submit:
    """Admits one run. Delivers its handle when the run is durable."""

    __slots__ = ("_deliver", "_handle", "_runtime", "_submission")

    def __init__(self, runtime: Runtime, submission: Submission, deliver: Deliver) -> None:
        self._runtime = runtime
        self._submission = submission
        self._deliver = deliver
        self._handle: RunHandle[Any] | None = None

    def start(self) -> None:
        """Admit the run."""
        try:
            admitted = self._runtime._admit_at_once(self._submission)
        except Exception as error:
            self._deliver(Error(error))
            return
        if admitted is None:
            self._deliver(Value(NEEDS_TASK))
            return
        self._handle, group = admitted
        if group is None:
            self._deliver(Value(self._handle))
        else:
            group.notify(self._durable)

    def _durable(self, error: StoreError | None) -> None:
        self._deliver(Value(self._handle) if error is None else Error(error))


class WaitForEnd:
    """Waits for the end of one run. Delivers what `Runtime.wait_for_end` returns."""

    __slots__ = ("_deliver", "_runtime", "_submission")

    def __init__(self, runtime: Runtime, submission: Submission, deliver: Deliver) -> None:
        self._runtime = runtime
        self._submission = submission
        self._deliver = deliver

    def start(self) -> None:
        """Register for the end of the run, if the run is in memory."""
        if not self._submission.at_hand:
            self._deliver(Value(NEEDS_TASK))
            return
        try:
            self._runtime._run_table.when_ended(self._submission.number, self)
        except Exception as error:
            self._deliver(Error(error))

    def cancel(self) -> None:
        """Stop waiting."""
        self._runtime._run_table.ignore_end(self._submission.number, self)

    def __call__(self, number: int, end: End) -> None:
        """Deliver the end."""
        self._deliver(end_status(end))
