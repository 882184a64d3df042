"""Submits: a client sends what its tasks submit in one pass of the event loop as one call.

1. A batch takes submits until its call is sent. The owner admits its runs in one commit, with one
   entry in the audit log. A batch of one run is the operation `submit`.
2. A batch has one operation id. If the connection breaks, the tasks that wait repeat the batch as
   it was sent, so each run is submitted once.
3. A run that the owner does not admit at once is submitted alone: that call waits for room, or
   raises the error.
"""

from contextlib import suppress
from typing import Any
from uuid import uuid4

import trio

from keyrun.control.frames import ANSWER, pack
from keyrun.control.requests import Submitted
from keyrun.control.table import CALLS
from keyrun.control.transport import Attempts, Calls, Disconnected, Transport

MOST_RUNS = 100
"""Runs of a batch."""
MOST_BYTES = 256 * 1024
"""Bytes of the inputs of a batch, after which the next submit begins another one."""

_SUBMIT, _TOGETHER = CALLS["submit"], CALLS["submit_together"]


class NewSubmit:
    """One submit of a batch."""

    __slots__ = ("arguments", "has_left", "place", "waits")

    def __init__(self, arguments: dict[str, Any], *, waits: bool) -> None:
        self.arguments = arguments
        """The arguments as they travel."""
        self.waits = waits
        """Whether it waits for room."""
        self.place = -1
        """The place in the call."""
        self.has_left = False
        """Whether its task waits no more, and found no owner."""

    def alone(self) -> dict[str, Any]:
        """Return the arguments of the operation `submit`."""
        return self.arguments if self.waits else {**self.arguments, "nowait": True}


class SubmitBatch:
    """Submits that travel together."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._operation = _SUBMIT
        self._operation_id = uuid4().hex
        self._submits: list[NewSubmit] = []
        self._bytes = 0
        self._waiting: dict[trio.lowlevel.Task, None] = {}
        self._connection: Calls | None = None
        """The connection that the batch is sent on."""
        self._call = 0
        self._answer: tuple[int, Any] | None = None
        self._was_sent = False
        self.has_room = True
        """Whether a further submit may be added."""

    def add(self, submit: NewSubmit) -> None:
        """Add a submit."""
        self._submits.append(submit)
        self._bytes += len(submit.arguments["input"])
        if self._bytes > MOST_BYTES or len(self._submits) == MOST_RUNS:
            self.has_room = False

    async def answer(self, submit: NewSubmit) -> Submitted | None:
        """Return the answer to a submit. None if it has to be made alone."""
        attempts = Attempts(self._transport)
        while self._answer is None:
            try:
                connection = await attempts.next()
            except BaseException:
                submit.has_left = True
                raise
            if self._answer is None:
                with suppress(Disconnected):
                    await self._sent_on(connection)
        kind, value = self._answer
        if kind != ANSWER:
            raise self._transport.error(self._operation, kind, value)
        if self._operation is _TOGETHER:
            value = value[submit.place]
        found: Submitted | None = value and self._transport.read(_SUBMIT, value)
        return found

    async def _sent_on(self, connection: Calls) -> None:
        """Send the batch if it was not sent on this connection, and wait for the answer, or until
        the connection breaks."""
        if self._connection is not connection:
            self._call = connection.begin_later(self._frame, self._take)
            self._connection = connection
        task = trio.lowlevel.current_task()
        self._waiting[task] = None

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._waiting[task]
            if not self._waiting and self._was_sent:
                self._connection = None
                connection.end(self._call, cancel=True)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _frame(self, call: int) -> bytes:
        """Return the frame of the batch. A repeat is the same call."""
        if not self._was_sent:
            self._was_sent, self.has_room = True, False
            self._submits = [each for each in self._submits if not each.has_left]
            for place, each in enumerate(self._submits):
                each.place = place
            if len(self._submits) > 1:
                self._operation = _TOGETHER
        if self._operation is _SUBMIT:
            (only,) = self._submits
            return pack(call, _SUBMIT.name, self._operation_id, only.alone())
        runs = [each.arguments for each in self._submits]
        return pack(call, _TOGETHER.name, self._operation_id, {"runs": runs})

    def _take(self, kind: int, value: Any) -> None:
        """Take the answer, and let the tasks continue."""
        connection, self._connection = self._connection, None
        if connection is not None and kind >= 0:
            connection.end(self._call, cancel=False)
        if kind == ANSWER or not isinstance(
            self._transport.error(self._operation, kind, value), Disconnected
        ):
            self._answer = kind, value
        waiting, self._waiting = self._waiting, {}
        for task in waiting:
            trio.lowlevel.reschedule(task)


class Submits:
    """Collects the submits of one pass of the loop."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._batch = SubmitBatch(transport)

    async def submit(self, arguments: dict[str, Any], *, wait: bool) -> Submitted:
        """Submit a run, and return when it is durable. `wait`: wait for room if there is none."""
        new = NewSubmit(_SUBMIT.arguments_on_wire(arguments), waits=wait)
        found = None
        if len(new.arguments["input"]) <= MOST_BYTES:
            if not self._batch.has_room:
                self._batch = SubmitBatch(self._transport)
            self._batch.add(new)
            found = await self._batch.answer(new)
        if found is None:
            found = await self._transport.call_written(_SUBMIT, new.alone())
        return found
