"""`keyrun status`: show everything that is known about one run."""

from collections.abc import Iterator
from contextlib import suppress
from time import time
from typing import Any

import click

from keyrun import Failure, Reader, RunStatus, StoreCorrupt, UnknownRun
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.compensation import not_compensated, progress_of, state_of, step_name
from keyrun.cli.errors import report_errors, unknown_run
from keyrun.cli.failures import tracebacks
from keyrun.cli.reading import read_store
from keyrun.cli.screen import note, print_block, print_fields
from keyrun.cli.times import duration, local_exactly, waiting
from keyrun.runtime.groups.records import MEMBER
from keyrun.runtime.records.submission import OF_GROUP
from keyrun.storage import PayloadError


@click.command("status")
@options.store
@click.argument("run_id")
@options.namespace
@options.as_json
@report_errors
def command(*, store: StoreAddress, run_id: str, namespace: str, as_json: bool) -> None:
    """Show a run of STORE: its state, its times, its input, and its result or failure.

    \b
    Examples:
      keyrun status state/ order-7
      keyrun status state/ order-7 --json | jq .result

    The exit code is 1 if the run does not exist.
    """
    found, given = read_store(store, namespace, lambda reader: _find(reader, run_id))
    if found is None:
        raise unknown_run(run_id, store)
    if as_json:
        print(documents.line({**documents.run(found), "input": documents.plain(given)}))
    else:
        print_fields(_fields(found, given))
        for text in tracebacks(found.failure):
            print()
            print_block(text)


async def _find(reader: Reader, run_id: str) -> tuple[RunStatus | None, Any]:
    """Return the status of a run and its input."""
    given = None
    with suppress(UnknownRun, StoreCorrupt):
        try:
            given = await reader.input(run_id)
        except PayloadError as error:
            note(f"The input cannot be decoded here: {error}")
    try:
        return await reader.status(run_id), given
    except PayloadError as error:
        note(f"The result cannot be decoded here: {error}")
        return await reader.status(run_id, result=False), given


def _fields(run: RunStatus, given: Any) -> Iterator[tuple[str, object]]:
    yield "run", run.run_id
    yield "key", run.key
    yield "workflow", f"{run.workflow}, version {run.version}"
    cause = run.quarantine_cause
    state = run.state if cause is None else f"{run.state} ({cause})"
    yield "state", state_of(state, run.compensating)
    yield "compensation", progress_of(run.compensation, run.state.terminal)
    yield "not compensated", not_compensated(run.failure, run.compensation)
    yield "waiting for", waiting(run.waiting_on, run.waiting_until)
    attempt = f", attempt {run.attempt}" if run.attempt else ""
    yield "step", run.step and step_name(run.step) + attempt
    yield "steps done", run.steps_done
    yield "submitted", local_exactly(run.submitted_at or None)
    if run.origin.startswith(OF_GROUP):
        yield "group", f"{run.origin.removeprefix(OF_GROUP)}, member {run.headers.get(MEMBER)}"
    elif run.origin != "submit":
        yield "origin", run.origin
    yield "started", local_exactly(run.started_at)
    yield "ended", local_exactly(run.ended_at)
    if run.started_at is not None:
        yield "took", duration((run.ended_at or time()) - run.started_at)
    yield "deadline", local_exactly(run.deadline)
    yield "generation", run.generation if run.generation > 1 else None
    yield "tags", ", ".join(run.tags)
    yield "headers", ", ".join(f"{name}={value}" for name, value in run.headers.items())
    if given is not None:
        yield "input", documents.line(given)
    if run.result is not None:
        yield "result", documents.line(run.result)
    yield "reason", run.reason if run.failure is None else None
    yield from _failures(run.failure)


def _failures(failure: Failure | None) -> Iterator[tuple[str, object]]:
    name = "failure"
    while failure is not None:
        yield name, f"{failure.kind}: {failure.reason}"
        name, failure = "caused by", failure.cause
