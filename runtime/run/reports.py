"""Reports: what a step, or a workflow, says of how far it is.

A report replaces the one before it and is stored with the next commit, within 50 ms, for readers in
other processes. That of a step is gone with the attempt; that of a workflow stays with the run.
Nothing depends on them: they are no part of the journal.
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
    """Raise unless a report can say this."""
    if isinstance(percent, bool) or not isinstance(percent, int | float):
        raise TypeError(f"percent must be a number between 0 and 100, got {percent!r}")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent must be between 0 and 100, got {percent!r}")
    if not isinstance(message, str):
        raise TypeError(f"message must be a string, got {message!r}")
    check_text(message, "message")


def of_step(run: "Run", current: RunningStep, percent: float, message: str) -> None:
    """An attempt says how far it is, from whatever thread it runs in."""
    current.progress = Report(percent, message, current.progress)
    if trio.lowlevel.in_trio_run():
        _take(run, current)
    else:
        with suppress(trio.RunFinishedError):
            run.partition.host.token.run_sync_soon(_take_if_possible, run, current)


def _take_if_possible(run: "Run", current: RunningStep) -> None:
    # Nobody is there to be told that the store has failed; all else will be.
    with suppress(StoreError):
        _take(run, current)


def _take(run: "Run", current: RunningStep) -> None:
    report = current.progress
    if report is None or current.over:
        return
    report.at = run.partition.wall()
    # While an attempt has waited for nothing, nobody could see its report anyway.
    if current.until is not None:
        store(run, current)
        if run.partition.feed is not None:
            emitter.step_progress(run.partition.feed, run, current, report)


def store(run: "Run", current: RunningStep) -> None:
    """Stage what an attempt said last."""
    report = current.progress
    assert report is not None
    key = run.partition.ledger.step(run.number, current.step)
    _stage(run, key, current.step, current.attempt, report)


def _stage(run: "Run", key: bytes, step: str, attempt: int, report: Report) -> None:
    # Straight into the group: no step has to wait for the commit of a report.
    fields = step, attempt, report.percent, report.message, report.at
    run.partition.commits.open_group().tables["reports"][key] = seal("reports", key, fields)


def of_run(run: "Run", percent: float, message: str) -> None:
    """A workflow says how far it is. What it says again on its way through the journal is old."""
    report = Report(percent, message, run.reported)
    if run.is_dry_run or run.journal.replaying:
        return
    if run.reported is not None and run.reported.said == report.said:
        return
    report.at = run.partition.wall()
    run.reported = report
    _stage(run, run.record, "", 0, report)
    if run.partition.feed is not None:
        emitter.run_progress(run.partition.feed, run, report)
