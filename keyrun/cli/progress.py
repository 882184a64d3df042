"""`keyrun progress`: show the progress of a run, once or until the run ends."""

import sys
from collections.abc import Iterator

import click

from keyrun import Reader
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.compensation import not_compensated, progress_of, state_of, step_name
from keyrun.cli.errors import report_errors, unknown_run
from keyrun.cli.items import items_of
from keyrun.cli.reading import read_store
from keyrun.cli.screen import Screen, fold, print_fields, visible, wrap
from keyrun.cli.times import duration
from keyrun.runtime.inspect.progress import Progress


@click.command("progress")
@options.store
@click.argument("run_id")
@click.option("--follow", "-f", is_flag=True, help="Print every change until the run ends.")
@click.option(
    "--interval",
    type=click.FloatRange(0.01),
    default=0.2,
    show_default=True,
    metavar="SECONDS",
    help="Time between two reads with --follow.",
)
@options.namespace
@options.as_json
@report_errors
def command(
    *,
    store: StoreAddress,
    run_id: str,
    follow: bool,
    interval: float,
    namespace: str,
    as_json: bool,
) -> None:
    """Show the progress of a run of STORE: percent, steps, running steps, time left.

    \b
    Examples:
      keyrun progress state/ order-7
      keyrun progress state/ order-7 --follow
      keyrun progress state/ order-7 --follow --json

    With --follow, the command prints a line after every change until the run ends. On a terminal,
    the line is replaced. The exit code is 1 if the run does not exist.
    """

    async def ask(reader: Reader) -> None:
        if follow:
            await follow_progress(reader, run_id, interval, as_json)
            return
        progress = await reader.progress(run_id)
        if progress is None:
            raise unknown_run(run_id, store)
        if as_json:
            print(documents.line(documents.progress(progress)))
        else:
            print_fields(_fields(progress))

    read_store(store, namespace, ask)


async def follow_progress(reader: Reader, run_id: str, interval: float, as_json: bool) -> None:
    above = 0
    async for progress in reader.watch(run_id, interval=interval):
        if as_json:
            print(documents.line(documents.progress(progress)), flush=True)
            continue
        screen = Screen.of(sys.stdout)
        if not screen.terminal:
            screen.print(_line(progress), hang="  ")
            continue
        room = screen.width - 1
        lines = [part for line in wrap(_line(progress), room) for part in fold(line, room)]
        # Replace the lines of the last change.
        sys.stdout.write(f"\x1b[{above}F\x1b[J" if above else "")
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        above = len(lines)


def _line(progress: Progress) -> str:
    """Return the progress as one line, the most important part first."""
    parts = [str(progress.state)]
    if progress.compensating and progress.compensation is not None:
        parts.append(f"compensated {progress.compensation.done} of {progress.compensation.total}")
    if progress.percent is not None:
        parts.append(f"{progress.percent:.0f} %")
    parts.append(_steps(progress.steps.done))
    parts += [f"{visible(name)} {items_of(counts)}" for name, counts in progress.items.items()]
    if progress.message:
        parts.append(visible(progress.message))
    if progress.time_left:
        parts.append(f"{duration(progress.time_left)} left")
    parts += [_running(progress)] if progress.running else []
    parts += [visible(progress.waiting_on)] if progress.waiting_on else []
    return "  ".join(parts)


def _steps(done: int) -> str:
    return "1 step done" if done == 1 else f"{done} steps done"


def _running(progress: Progress) -> str:
    texts = []
    for step in progress.running:
        percent = "" if step.percent is None else f" {step.percent:.0f} %"
        message = f" {step.message}" if step.message else ""
        again = f" (attempt {step.attempt})" if step.attempt > 1 else ""
        texts.append(visible(f"{step_name(step.step)}{again}{percent}{message}"))
    return ", ".join(texts)


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
    for name, counts in progress.items.items():
        yield f"items of {visible(name)}", items_of(counts)
    yield "running", _running(progress)
    yield "waiting for", progress.waiting_on
    yield "steps per second", None if progress.rate is None else f"{progress.rate:.2g}"
    yield "elapsed", duration(progress.elapsed)
    if not progress.state.terminal:
        yield "time left", duration(progress.time_left)
    yield "last error", progress.last_error and progress.last_error.reason
