"""`keyrun stress`: run random work with faults, kill it repeatedly, and check the guarantees."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from tempfile import mkdtemp
from typing import Any, TypeVar

import attrs
import click
from rich.console import Console

from keyrun.stress.campaign import CHILD, Assignment, Broken, Campaign, stoppable
from keyrun.stress.checking import Checking, SteadyConsole
from keyrun.stress.display import CampaignDisplay
from keyrun.stress.options import Options
from keyrun.stress.record import CampaignRecord
from keyrun.stress.report import pronounce
from keyrun.stress.verdict import Verdict, judge

DEFAULTS = Options()
RATE = click.FloatRange(0.0, 1.0)

F = TypeVar("F", bound=Callable[..., Any])


def assign(options: Options, folder: Path, **other: Any) -> Assignment:
    """Return the assignment for these options in `folder`."""
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
    """Run the test and return the verdict."""
    campaign = Campaign(assign(options, folder, **other), CampaignRecord(options, options.keys))
    broken: Broken | None = None
    with CampaignDisplay(console) as display:
        try:
            campaign.run(display.show)
        except Broken as error:
            broken = error
    with Checking(console) as checking:
        return judge(campaign, broken, folder, checking)


def _rate(name: str, text: str) -> Callable[[F], F]:
    """Return the option for a share of runs, steps or attempts."""
    default = getattr(DEFAULTS, f"{name}_rate")
    option = f"--{name.replace('_', '-')}-rate"
    return click.option(option, type=RATE, default=default, metavar="SHARE", help=text)


@click.command(
    "stress",
    context_settings={"show_default": True, "help_option_names": ["-h", "--help"]},
)
@click.option(
    "--keys",
    type=click.IntRange(1, 100_000),
    default=DEFAULTS.keys,
    metavar="N",
    help="Number of ordering keys.",
)
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=DEFAULTS.runs,
    metavar="N",
    help="Maximum number of runs.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 100),
    default=DEFAULTS.steps,
    metavar="N",
    help="Maximum number of steps in a run.",
)
@_rate("fail", "Share of attempts that fail.")
@_rate("timeout", "Share of attempts that time out.")
@_rate("cancel", "Share of runs that are cancelled.")
@_rate("pause", "Share of submits that are followed by a pause.")
@_rate("delay", "Share of runs that start with a delay.")
@_rate("once", "Share of steps that may run at most once.")
@_rate("redrive", "Share of dead letters that are redriven.")
@_rate("run_timeout", "Share of runs that exceed their run timeout.")
@click.option(
    "--crash-every",
    type=click.FloatRange(0.0),
    default=DEFAULTS.crash_every,
    metavar="SECONDS",
    help="Average time between two kills; 0 for no kills.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.0, min_open=True),
    default=DEFAULTS.seconds,
    metavar="SECONDS",
    help="Time in which runs are submitted and processes are killed.",
)
@click.option(
    "--committer",
    type=click.Choice(["inline", "process"]),
    default=DEFAULTS.committer,
    help="Commit in the process of the runtime, or in a second process.",
)
@click.option(
    "--seed",
    type=int,
    default=None,
    metavar="N",
    help="Seed of all random decisions.  [default: random]",
)
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Empty directory to work in. It is kept.  [default: a temporary directory]",
)
@click.option(
    "--json",
    "report",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a report as JSON to this file.",
)
def command(seed: int | None, store: Path | None, report: Path | None, **given: Any) -> None:
    """Test the guarantees of Keyrun on this machine with faults and kills.

    A child process runs random work with planned failures, timeouts, cancellations, pauses,
    delays, redrives and steps that may run at most once. The command kills the child with SIGKILL
    repeatedly and starts it again on the same store until every run has ended.

    Then it checks order, lost runs, repeated steps, limits, results and state. It compares the
    store with a file that the steps wrote while they ran, and with the outcome that follows from
    the seed. The exit code is 1 if a guarantee was broken.

    The same seed repeats the same work, but not the exact times of the kills.

    \b
    Examples:
      keyrun stress
      keyrun stress --seconds 60 --crash-every 0.5
      keyrun stress --keys 500 --committer process
    """
    options = Options(seed=SystemRandom().getrandbits(31) if seed is None else seed, **given)
    if store is not None and store.exists() and any(store.iterdir()):
        raise click.BadParameter(
            f"{store} is not empty; give an empty or a new directory", param_hint="--store"
        )
    folder = Path(mkdtemp(prefix="keyrun-stress-")) if store is None else store
    folder.mkdir(parents=True, exist_ok=True)
    console = SteadyConsole(highlight=False)
    keep = True
    try:
        with stoppable():
            verdict = stress(options, folder, console)
        keep = store is not None or not verdict.ok
    except KeyboardInterrupt:
        keep = store is not None
        console.print("Stopped.")
        sys.exit(130)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if report is not None:
        text = {"command": options.command(), "folder": str(folder), **verdict.report()}
        report.write_text(json.dumps(text, indent=2) + "\n")
    pronounce(verdict, console)
    if not verdict.ok:
        console.print(f"\nThe evidence is in {folder}. To repeat the test:", soft_wrap=True)
        console.print(f"  {options.command()}", soft_wrap=True)
        sys.exit(1)
    console.print(f"Seed {options.seed}")
