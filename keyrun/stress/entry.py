"""`keyrun stress`: random work with faults, killed over and over, and a verdict on it."""

import json
import shutil
import sys
from pathlib import Path
from random import SystemRandom
from tempfile import mkdtemp
from typing import Any

import attrs
import click
from rich.console import Console

from keyrun.stress.campaign import CHILD, Assignment, Broken, Campaign, stoppable
from keyrun.stress.display import Display
from keyrun.stress.options import Options
from keyrun.stress.record import Record
from keyrun.stress.report import pronounce
from keyrun.stress.verdict import Verdict, judge

DEFAULTS = Options()
RATE = click.FloatRange(0.0, 1.0)


def assign(options: Options, folder: Path, **other: Any) -> Assignment:
    """The options as something to be done in `folder`."""
    return Assignment(
        folder=folder,
        planner="keyrun.stress.options:Options",
        options=attrs.asdict(options),
        workflow="keyrun.stress.child:job",
        keys=options.keys,
        runs=options.runs,
        seconds=options.seconds,
        crash_every=options.crash_every,
        seed=options.seed,
        slots=max(4, options.keys // 2),
        committer=options.committer,
        **{"child": CHILD, **other},
    )


def stress(options: Options, folder: Path, console: Console, **other: Any) -> Verdict:
    """Do it, and judge."""
    campaign = Campaign(assign(options, folder, **other), Record(options, options.keys))
    broken: Broken | None = None
    with Display(console) as display:
        try:
            campaign.run(display.show)
        except Broken as error:
            broken = error
    return judge(campaign, broken, folder)


@click.command(
    "stress",
    context_settings={"show_default": True, "help_option_names": ["-h", "--help"]},
)
@click.option("--keys", type=click.IntRange(1, 100_000), default=DEFAULTS.keys)
@click.option("--runs", type=click.IntRange(1), default=DEFAULTS.runs, help="At most this many.")
@click.option("--steps", type=click.IntRange(1, 100), default=DEFAULTS.steps, help="Most of a run.")
@click.option("--fail-rate", type=RATE, default=DEFAULTS.fail_rate, help="Share of attempts.")
@click.option("--timeout-rate", type=RATE, default=DEFAULTS.timeout_rate, help="The same.")
@click.option("--cancel-rate", type=RATE, default=DEFAULTS.cancel_rate, help="Share of runs.")
@click.option("--pause-rate", type=RATE, default=DEFAULTS.pause_rate, help="The same.")
@click.option("--delay-rate", type=RATE, default=DEFAULTS.delay_rate, help="Runs that begin later.")
@click.option("--once-rate", type=RATE, default=DEFAULTS.once_rate, help="Steps that may run once.")
@click.option(
    "--redrive-rate", type=RATE, default=DEFAULTS.redrive_rate, help="Share of dead letters."
)
@click.option(
    "--run-timeout-rate", type=RATE, default=DEFAULTS.run_timeout_rate, help="Share of runs."
)
@click.option(
    "--crash-every",
    type=click.FloatRange(0.0),
    default=DEFAULTS.crash_every,
    help="Seconds between kills, about; 0 kills nobody.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.0, min_open=True),
    default=DEFAULTS.seconds,
    help="After this nothing is submitted, and nobody killed.",
)
@click.option("--committer", type=click.Choice(["inline", "process"]), default=DEFAULTS.committer)
@click.option("--seed", type=int, default=None, help="Of everything random. [default: random]")
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    help="An empty folder to work in, and to keep. [default: a temporary one]",
)
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write a report here.")
def command(seed: int | None, store: Path | None, report: Path | None, **given: Any) -> None:
    """Try to break Keyrun on this machine.

    A child process runs random work with planned failures, timeouts, cancels, pauses, delays,
    redrives, steps that may run at most once and runs whose time is up. It is
    killed with SIGKILL again and again, and started again on the same store, until everything has
    ended. Then order, loss, doubled steps, limits, results and state are checked, against a file
    that the steps wrote as they ran and against what the seed says must have happened. The exit
    code is 1 if a promise was broken.

    A seed repeats the work, not the exact moments of the kills.

    \b
    Examples:
      keyrun stress
      keyrun stress --seconds 60 --crash-every 0.5
      keyrun stress --keys 500 --committer process
    """
    options = Options(seed=SystemRandom().getrandbits(31) if seed is None else seed, **given)
    if store is not None and store.exists() and any(store.iterdir()):
        raise click.BadParameter(f"{store} is not empty", param_hint="--store")
    folder = Path(mkdtemp(prefix="keyrun-stress-")) if store is None else store
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    keep = True
    try:
        with stoppable():
            verdict = stress(options, folder, console)
        keep = store is not None or not verdict.ok
    except KeyboardInterrupt:
        keep = store is not None
        console.print("stopped")
        sys.exit(130)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if report is not None:
        text = {"command": options.command(), "folder": str(folder), **verdict.report()}
        report.write_text(json.dumps(text, indent=2) + "\n")
    pronounce(verdict, console)
    if not verdict.ok:
        console.print(f"\nthe evidence is in {folder}; to repeat it:", soft_wrap=True)
        console.print(f"  {options.command()}", soft_wrap=True)
        sys.exit(1)
    console.print(f"seed {options.seed}")
