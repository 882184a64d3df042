"""`keyrun progress`: how far a run is, once or until it has ended."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from keyrun import Reader, UnknownRun
from keyrun.cli import documents, options
from keyrun.cli.compensation import not_compensated, progress_of, state_of, step_name
from keyrun.cli.exits import NOT_FOUND, Refusal
from keyrun.cli.lookup import look
from keyrun.cli.screen import console, sheet, visible
from keyrun.cli.times import duration
from keyrun.cli.troubles import plainly
from keyrun.runtime.inspect.progress import Progress


@click.command("progress")
@options.store
@click.argument("run_id")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run has ended.")
@click.option(
    "--interval",
    type=click.FloatRange(0.01),
    default=0.2,
    show_default=True,
    help="Seconds between looks with --follow.",
)
@options.namespace
@options.as_json
@plainly
def command(
    *, store: Path, run_id: str, follow: bool, interval: float, namespace: str, as_json: bool
) -> None:
    """Show how far a run of STORE is: percent, steps, what runs, time left.

    \b
    Examples:
      keyrun progress state/ order-7
      keyrun progress state/ order-7 --follow
      keyrun progress state/ order-7 --follow --json

    With --follow there is a line whenever something has changed, until the run has ended; on a
    terminal it is one line that changes. Exits with 1 if there is no such run.
    """

    async def ask(reader: Reader) -> None:
        try:
            if follow:
                await _follow(reader, run_id, interval, as_json)
            else:
                progress = await reader.progress(run_id)
                if progress is None:
                    raise Refusal(f"no run has the id {run_id!r}, or it was forgotten", NOT_FOUND)
                _show(progress, as_json)
        except UnknownRun as error:
            raise Refusal(str(error), NOT_FOUND) from error

    look(store, namespace, ask)


def _show(progress: Progress, as_json: bool) -> None:
    if as_json:
        print(documents.line(documents.progress(progress)))
    else:
        sheet(_fields(progress))


async def _follow(reader: Reader, run_id: str, interval: float, as_json: bool) -> None:
    screen = console()
    changing = screen.is_terminal and not as_json
    async for progress in reader.watch(run_id, interval=interval):
        if as_json:
            print(documents.line(documents.progress(progress)), flush=True)
            continue
        text = _line(progress)
        if changing:
            sys.stdout.write(f"\r\x1b[K{text[: screen.width - 1]}")
            sys.stdout.flush()
        else:
            print(text, flush=True)
    if changing:
        print()


def _line(progress: Progress) -> str:
    """All on one line, the most important first."""
    parts = [str(progress.state)]
    if progress.compensating and progress.compensation is not None:
        parts.append(f"compensated {progress.compensation.done} of {progress.compensation.total}")
    if progress.percent is not None:
        parts.append(f"{progress.percent:.0f} %")
    parts.append(f"{progress.steps.done} done")
    if progress.message:
        parts.append(visible(progress.message))
    if progress.time_left:
        parts.append(f"{duration(progress.time_left)} left")
    parts += [_running(progress)] if progress.running else []
    parts += [visible(progress.waiting_on)] if progress.waiting_on else []
    return "  ".join(parts)


def _running(progress: Progress) -> str:
    said = []
    for step in progress.running:
        percent = "" if step.percent is None else f" {step.percent:.0f} %"
        message = f" {step.message}" if step.message else ""
        again = f" (attempt {step.attempt})" if step.attempt > 1 else ""
        said.append(visible(f"{step_name(step.step)}{again}{percent}{message}"))
    return ", ".join(said)


def _fields(progress: Progress) -> Iterator[tuple[str, object]]:
    steps = progress.steps
    yield "run", progress.run_id
    yield "key", progress.key
    yield "workflow", progress.workflow
    yield "state", state_of(progress.state, progress.compensating)
    yield "compensation", progress_of(progress.compensation, progress.state.terminal)
    yield "not compensated", not_compensated(None, progress.compensation)
    yield "percent", None if progress.percent is None else f"{progress.percent:.0f}"
    yield "message", progress.message
    yield "steps done", steps.done
    for name in ("running", "retrying", "waiting", "failed"):
        yield f"steps {name}", getattr(steps, name) or None
    for name, count in (progress.nodes or {}).items():
        yield f"nodes {name.replace('_', ' ')}", count or None
    yield "running", _running(progress)
    yield "waiting on", progress.waiting_on
    yield "steps per second", None if progress.rate is None else f"{progress.rate:.2g}"
    yield "elapsed", duration(progress.elapsed)
    yield "time left", duration(progress.time_left)
    yield "last error", progress.last_error and progress.last_error.reason
