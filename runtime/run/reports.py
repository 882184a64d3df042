"""Reports: the progress that a step or a workflow reports.

A report replaces the one before it and is stored with the next commit, within 50 ms, for readers in
other processes. The report of a step is removed with the attempt. The report of a workflow stays
with the run. Reports are not part of the journal, and no code depends on them.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from keyrun.runtime.events import emitter
from keyrun.runtime.run.running_step import Report, RunningStep
from keyrun.runtime.texts import check_text
from keyrun.storage.errors import StoreError
from keyrun.storage.record import seal

if TYPE_CHECKING:
    from keyrun.runtime.run.run import Run


def check(percent: float, message: str) -> None:
    """Raise if the arguments of a report are not valid."""
    if isinstance(percent, bool) or not isinstance(percent, int | float):
        raise TypeError(f"percent must be a number between 0 and 100, got {percent!r}")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent must be between 0 and 100, got {percent!r}")
    if not isinstance(message, str):
        raise TypeError(f"message must be a string, got {message!r}")
    check_text(message, "message")


def of_step(run: "Run", current: RunningStep, percent: float, message: str) -> None:
    """Take the report of an attempt, from any thread."""
    message = run.partition.redaction.text(message)
    current.progress = Report(percent, message, current.progress)
    if trio.lowlevel.in_trio_run():
        _take(run, current)
    else:
        with suppress(trio.RunFinishedError):
            run.partition.host.token.run_sync_soon(_take_if_possible, run, current)


def _take_if_possible(run: "Run", current: RunningStep) -> None:
    # The failure of the store is reported elsewhere, and there is no caller to raise it to.
    with suppress(StoreError):
        _take(run, current)


def _take(run: "Run", current: RunningStep) -> None:
    report = current.progress
    if report is None or current.over:
        return
    report.at = run.partition.wall()
    # No reader can see the report of an attempt that has not suspended.
    if current.until is not None:
        store(run, current)
        if run.partition.feed is not None:
            emitter.step_progress(run.partition.feed, run, current, report)


def store(run: "Run", current: RunningStep) -> None:
    """Stage the last report of an attempt."""
    report = current.progress
    assert report is not None
    key = run.partition.ledger.step(run.number, current.step)
    _stage(run, key, current.step, current.attempt, report)


def _stage(run: "Run", key: bytes, step: str, attempt: int, report: Report) -> None:
    # Not with `run.put`, because no step has to wait for the commit of a report.
    fields = step, attempt, report.percent, report.message, report.at
    run.partition.commits.open_group().table("reports")[key] = seal("reports", key, fields)


def of_run(run: "Run", percent: float, message: str) -> None:
    """Take the report of a workflow. A report that a replay repeats is ignored."""
    report = Report(percent, run.partition.redaction.text(message), run.reported)
    if run.is_dry_run or run.journal.is_replaying():
        return
    if run.reported is not None and run.reported.content == report.content:
        return
    report.at = run.partition.wall()
    run.reported = report
    _stage(run, run.record, "", 0, report)
    if run.partition.feed is not None:
        emitter.run_progress(run.partition.feed, run, report)
