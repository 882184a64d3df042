"""Shared runtimes: the runtime of a process that shares a store, in both of its roles.

As a client it forwards its calls to the owner. As the owner it calls its own engine, and what the
client has begun continues through a loopback.
"""

import inspect
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from keyrun.control.remote import RemoteRuntime, about
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.limits import Limits
from keyrun.runtime.records.submission import StatusRecord, Submission
from keyrun.runtime.runtime import Runtime
from keyrun.runtime.values import Priority, RunStatus
from keyrun.storage import StoreClosed, StoreLost

if TYPE_CHECKING:
    from keyrun.runtime.inspect.statistics import RuntimeStatistics

ENGINE_ENDS = (StoreClosed, StoreLost)
"""What calls of an engine raise that closes, or has lost its store."""


class Travelled(bytes):
    """A payload that came from the owner. It has no transform."""


class SharedRuntime(RemoteRuntime):
    """The runtime of a process that owns its store until it leaves, once it owns it. From then on,
    the methods are those of the engine."""

    engine: Runtime | None = None
    """The runtime of this process, while it owns the store."""

    def own(self, engine: Runtime) -> None:
        """Call the engine of this process from now on."""
        self.engine = engine
        vars(self).update({name: each for name, each in vars(engine).items() if name not in _OWN})
        vars(self).update({name: getattr(engine, name) for name in _METHODS})

    def disown(self) -> None:
        """Record that the engine ends by itself. The block ends with it."""

    def _admit_at_once(self, described: Any) -> Any:
        if self.engine is None or not isinstance(described, Submission):
            return None  # the client has described it
        return self.engine._admit_at_once(described)

    async def _admit(self, described: Any, *, wait: bool) -> RunHandle[Any]:
        if self.engine is None or not isinstance(described, Submission):
            return await super()._admit(described, wait=wait)
        return await self.engine._admit(described, wait=wait)

    async def _find_end(self, about: Submission) -> StatusRecord | None:
        end = await super()._find_end(about)
        if end is None or end.result is None:
            return end
        return attrs.evolve(end, result=Travelled(end.result))

    def decode_result(self, workflow: str, version: int, payload: bytes) -> Any:
        """Return a result as its workflow declares it, or as plain data."""
        if self.engine is None or isinstance(payload, Travelled):
            return super().decode_result(workflow, version, payload)
        return self.engine.decode_result(workflow, version, payload)


_OWN = frozenset({"_admit", "_admit_at_once", "decode_result"})
"""What a `SharedRuntime` does itself when it has an engine."""
_METHODS = [
    name
    for name, _ in inspect.getmembers(Runtime, inspect.isfunction)
    if not name.startswith("__") and name not in _OWN
]


class AskedRun:
    """A run that is submitted: to the engine of this process, or to another owner."""

    __slots__ = ("given", "submission")

    def __init__(self, given: tuple[Any, ...], submission: Submission) -> None:
        self.given = given
        """The arguments of the submit, without `wait`."""
        self.submission = submission
        """The submission as an engine has described it. Its id is set when it is admitted."""


class LosableRuntime(SharedRuntime):
    """The runtime of a process that can lose its store. Submits and waits for ends use the engine
    while there is one. If the engine ends, they continue with the next owner: a run is submitted
    again under the same id. All other calls use the connection to the owner, which is a loopback
    in the process that owns the store."""

    _last: Runtime | None = None
    """The engine that this process has, or has had last. It reads the results that it returned."""

    def own(self, engine: Runtime) -> None:
        self.engine = self._last = engine

    def disown(self) -> None:
        self.engine = None

    # Submitting

    def _describe(self, *given: Any) -> Any:
        engine = self.engine
        if engine is None:
            return RemoteRuntime._describe(self, *given)
        return AskedRun(given, engine._describe(*given))

    async def submit(self, workflow: Any, input: Any = None, **options: Any) -> Any:  # noqa: A002
        """Start a run; see `Runtime.submit`."""
        return await self._admit(self._describe(*_given(workflow, input, **options)), wait=True)

    async def submit_nowait(self, workflow: Any, input: Any = None, **options: Any) -> Any:  # noqa: A002
        """Start a run unless the queue is full; see `Runtime.submit_nowait`."""
        return await self._admit(self._describe(*_given(workflow, input, **options)), wait=False)

    async def _admit(self, described: Any, *, wait: bool) -> RunHandle[Any]:
        if not isinstance(described, AskedRun):
            return await RemoteRuntime._admit(self, described, wait=wait)
        engine, new = self.engine, described.submission
        if engine is not None:
            with suppress(*ENGINE_ENDS):
                handle = await engine._admit(new, wait=wait)
                assert handle._submission is not None
                return RunHandle(self, about(handle._submission), handle.newly_submitted)
        # It is not known whether a run that has an id is stored.
        workflow, input_, key, run_id, *more = described.given
        arguments = RemoteRuntime._describe(
            self, workflow, input_, key, new.run_id or run_id, *more
        )
        handle = await RemoteRuntime._admit(self, arguments, wait=wait)
        handle.newly_submitted = handle.newly_submitted or run_id is None
        return handle

    # Runs

    async def _find_end(self, about: Submission) -> StatusRecord | None:
        engine = self.engine
        if engine is not None:
            with suppress(*ENGINE_ENDS):
                return await engine._find_end(about)
        return await super()._find_end(about)

    async def status_of(self, about: Submission) -> RunStatus | None:
        """Return the status of a run, or None if it was forgotten."""
        engine = self.engine
        if engine is not None:
            with suppress(*ENGINE_ENDS):
                return await engine.status_of(about)
        return await super().status_of(about)

    def decode_result(self, workflow: str, version: int, payload: bytes) -> Any:
        """Return a result as its workflow declares it, or as plain data."""
        if self._last is None or isinstance(payload, Travelled):
            return RemoteRuntime.decode_result(self, workflow, version, payload)
        return self._last.decode_result(workflow, version, payload)

    def statistics(self) -> "RuntimeStatistics":
        """Return the statistics of the owner; see `Runtime.statistics`."""
        return super().statistics() if self.engine is None else self.engine.statistics()


def _given(
    workflow: Any,
    input_: Any,
    *,
    key: str,
    run_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    tags: Iterable[str] = (),
    priority: Priority = Priority.NORMAL,
    limits: Limits | None = None,
    delay: float = 0,
) -> tuple[Any, ...]:
    """Return the arguments of a submit by place."""
    return workflow, input_, key, run_id, headers, tags, priority, limits, delay
