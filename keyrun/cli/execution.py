"""Execute one run: open the runtime, submit the run, print its progress and wait for its end.

SIGINT and SIGTERM stop the runtime after the running steps have finished. A second signal exits
at once. Like a crash, that loses nothing that is committed, and the run can be resumed.
"""

import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from getpass import getuser
from pathlib import Path
from typing import Any

import attrs
import trio

from keyrun import (
    Failure,
    GateNotWaiting,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunHandle,
    RunQuarantined,
    Runtime,
    State,
    Workflow,
    open_reader,
    open_runtime,
)
from keyrun.cli.compensation import not_compensated
from keyrun.cli.exit_codes import INTERRUPTED, USAGE, CommandError
from keyrun.cli.history import detail, headline
from keyrun.cli.screen import note, visible
from keyrun.cli.times import duration, local
from keyrun.runtime.inspect.history import Happening
from keyrun.status import QuarantineCause

POLL = 0.2
"""Seconds between two looks at the run."""
BLOCKED_AFTER = 1.0
"""Seconds until the command says which run of the same key is first."""


@attrs.frozen(kw_only=True)
class RunRequest:
    """A run to execute."""

    workflow: Workflow[Any, Any]
    known: tuple[Workflow[Any, Any], ...]
    """The workflows that the runtime knows."""
    input: Any
    key: str
    run_id: str | None
    tags: tuple[str, ...]
    headers: dict[str, str]
    namespace: str
    store_exists: bool
    quiet: bool
    print_resume: Callable[[str], None]
    """Print the command that resumes the run with this id."""
    approve: tuple[str, ...] = ()
    """Gates to approve."""
    signals: tuple[tuple[str, Any], ...] = ()
    """Signals to send, with their payloads."""


@attrs.define(kw_only=True)
class Outcome:
    """The outcome of a run.

    `state` is None if the command was interrupted. `run_id` is None if it was interrupted before
    the run was submitted.
    """

    run_id: str | None
    state: State | None = None
    result: Any = None
    reason: str = ""
    failure: Failure | None = None


async def execute(path: Path, request: RunRequest) -> Outcome:
    """Execute the run in the store at `path`."""
    if request.store_exists:
        await _check_unfinished(path, request)
    outcome = Outcome(run_id=request.run_id)
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            stop = trio.Event()
            nursery.start_soon(_handle_signals, signals, stop, request, outcome)
            async with open_runtime(
                path, workflows=request.known, namespace=request.namespace
            ) as runtime:
                await _follow(runtime, request, outcome, stop)
            nursery.cancel_scope.cancel()
    return outcome


async def _check_unfinished(path: Path, request: RunRequest) -> None:
    """Refuse to open a store with unfinished runs of unknown workflows: the runtime would
    quarantine these runs."""
    async with open_reader(path, namespace=request.namespace) as reader:
        unfinished = await reader.unfinished()
        ours = None if request.run_id is None else await reader.status(request.run_id, result=False)
    here = {(workflow.name, workflow.version) for workflow in request.known}
    missing = [f"{name!r} version {version}" for name, version in unfinished.keys() - here]
    if missing:
        raise CommandError(
            f"{path} has unfinished runs of {', '.join(sorted(missing))}, but no module here "
            "defines that; add the module that does with --with MODULE",
            USAGE,
        )
    others = sum(unfinished.values())
    if ours is not None and not ours.state.terminal:
        others -= ours.quarantine_cause is not QuarantineCause.DAMAGED
    if others and not request.quiet:
        what = "1 other unfinished run resumes" if others == 1 else f"{others} other runs resume"
        note(f"{what} in this store while this command runs.")


async def _handle_signals(
    signals: Any, stop: trio.Event, request: RunRequest, outcome: Outcome
) -> None:
    async for _ in signals:
        if stop.is_set():
            if outcome.run_id is not None:
                request.print_resume(outcome.run_id)
            os._exit(INTERRUPTED)
        stop.set()
        note("Stopping when the running steps have finished. Press Ctrl-C again to stop at once.")


async def _follow(
    runtime: Runtime, request: RunRequest, outcome: Outcome, stop: trio.Event
) -> None:
    async with trio.open_nursery() as nursery:

        async def until(wait: Callable[..., Awaitable[None]], *args: Any) -> None:
            await wait(*args)
            nursery.cancel_scope.cancel()

        nursery.start_soon(until, stop.wait)
        handle = await runtime.submit(
            request.workflow,
            request.input,
            key=request.key,
            run_id=request.run_id,
            tags=request.tags,
            headers=request.headers,
        )
        outcome.run_id = handle.run_id
        printer = None if request.quiet else ProgressPrinter(runtime, handle)
        if printer is not None:
            await printer.begin()
            nursery.start_soon(printer.run)
        for gate in request.approve:
            nursery.start_soon(_approve, runtime, handle.run_id, gate)
        nursery.start_soon(_send, runtime, handle.run_id, request.signals)
        nursery.start_soon(until, _wait, handle, outcome)
    if outcome.state is not None and printer is not None:
        await printer.print_new()


async def _approve(runtime: Runtime, run_id: str, gate: str) -> None:
    while True:
        try:
            await runtime.approve(run_id, gate, by=getuser(), comment="on the command line")
        except GateNotWaiting:
            await trio.sleep(POLL)
        except RunEnded:
            return
        else:
            note(f"Approved gate {visible(gate)}.")
            return


async def _send(runtime: Runtime, run_id: str, signals: Iterable[tuple[str, Any]]) -> None:
    for number, (name, payload) in enumerate(signals, 1):
        try:
            # With an id, because the command that resumes the run sends the signal again.
            await runtime.signal(run_id, name, payload, signal_id=f"command line {number}")
        except RunEnded:
            return


async def _wait(handle: RunHandle[Any], outcome: Outcome) -> None:
    try:
        outcome.result = await handle.result()
        outcome.state = State.SUCCEEDED
    except RunFailed as error:
        outcome.state, outcome.reason = State.FAILED, error.failure.reason
        outcome.failure = error.failure
        if error.failure.left:
            outcome.reason += f"; not compensated: {not_compensated(error.failure)}"
    except RunCancelled as error:
        outcome.state, outcome.reason = State.CANCELLED, error.reason or ""
    except RunQuarantined as error:
        outcome.state, outcome.reason = State.QUARANTINED, error.reason


class ProgressPrinter:
    """Print on stderr what happens to a run."""

    def __init__(self, runtime: Runtime, handle: RunHandle[Any]) -> None:
        self._runtime = runtime
        self._handle = handle
        self._printed: set[Happening] = set()

    async def begin(self) -> None:
        """Print the id of the run. Skip what happened in earlier processes."""
        handle, earlier = self._handle, ""
        if not handle.newly_submitted:
            earlier = ", submitted earlier"
            self._printed.update(await self._runtime.history(handle.run_id))
        note(f"Run {handle.run_id}, key {visible(handle.key)}{earlier}", hang="  ")

    async def run(self) -> None:
        """Print what is new until this is cancelled."""
        begun = trio.current_time()
        checked = False
        while True:
            started = trio.current_time()
            await self.print_new()
            if not checked and started - begun > BLOCKED_AFTER:
                await self._print_first_run()
                checked = True
            # Reading a long history takes time. Leave most of the time to the run itself.
            await trio.sleep(max(POLL, 10 * (trio.current_time() - started)))

    async def print_new(self) -> None:
        """Print what happened since the last call."""
        for happened in await self._runtime.history(self._handle.run_id):
            if happened not in self._printed and happened.event != "submitted":
                note(progress_line(happened), hang="  ")
            self._printed.add(happened)

    async def _print_first_run(self) -> None:
        """Print which run of the same key this run waits for."""
        for key in await self._runtime.keys(key=self._handle.key):
            if key.head not in ("", self._handle.run_id):
                paused = ", and the key is paused" if key.paused else ""
                note(
                    f"Waiting for run {key.head} of the same key, which is {key.state}{paused}.",
                    hang="  ",
                )


def progress_line(happened: Happening) -> str:
    """Return one line about one event."""
    words = [local(happened.at), *filter(None, headline(happened))]
    if happened.attempt and happened.attempt > 1:
        words.append(f"(attempt {happened.attempt})")
    if happened.began_at is not None:
        words.append(f"in {duration(happened.at - happened.began_at)}")
    more = detail(happened)
    return visible(" ".join(words) + (f": {more}" if more else ""))
