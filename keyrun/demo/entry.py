"""`keyrun demo`: show an order service at work, then check that it kept every guarantee."""

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from textwrap import fill
from typing import TextIO

import attrs
import cattrs
import click
from rich.console import Console

from keyrun.demo import orders
from keyrun.demo.display import WIDTH, DemoDisplay
from keyrun.demo.page import DemoPage, has_page
from keyrun.stress import acting
from keyrun.stress.campaign import CHILD, Assignment, Broken, Campaign, Terminated, stoppable
from keyrun.stress.checking import Checking, SteadyConsole
from keyrun.stress.record import CampaignRecord
from keyrun.stress.report import pronounce
from keyrun.stress.verdict import Verdict, judge

FOLDER = "keyrun-demo"
BEGUN = "demo.json"
MANY = 1_000_000_000


@attrs.frozen(kw_only=True)
class Begun:
    """The options that a demo began with. They are kept beside the store."""

    seconds: float
    keys: int
    seed: int


def begin(folder: Path, asked: Begun) -> tuple[Begun, bool]:
    """Return the options of the demo in `folder`, and whether it existed before."""
    file = folder / BEGUN
    if file.exists():
        return cattrs.structure(json.loads(file.read_text()), Begun), True
    if folder.exists() and any(folder.iterdir()):
        raise click.BadParameter(
            f"{folder} is not empty and contains no demo; give an empty or a new directory",
            param_hint="--store",
        )
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(attrs.asdict(asked)))
    return asked, False


def campaign_of(folder: Path, begun: Begun, kill_every: float) -> Campaign:
    """Return the rest of the work."""
    planner = orders.Orders(keys=begun.keys, seed=begun.seed)
    assignment = Assignment(
        folder=folder,
        planner="keyrun.demo.orders:Orders",
        options=attrs.asdict(planner),
        workflow="keyrun.demo.orders:order",
        keys=begun.keys,
        runs=MANY,
        seconds=begun.seconds,
        crash_every=kill_every,
        seed=begun.seed,
        backlog=1,
        slots=begun.keys,
        child=CHILD,
        control=has_page(),
    )
    return Campaign(assignment, CampaignRecord(planner, begun.keys))


@click.command(
    "demo",
    context_settings={"show_default": True, "help_option_names": ["-h", "--help"]},
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.0, min_open=True),
    default=45.0,
    metavar="SECONDS",
    help="Time in which customers place orders.",
)
@click.option(
    "--keys",
    type=click.IntRange(1, 100_000),
    default=300,
    metavar="N",
    help="Number of customers.",
)
@click.option(
    "--kill-every",
    type=click.FloatRange(0.0),
    default=0.0,
    metavar="SECONDS",
    help="Average time between two kills of the service; 0 for no kills.",
)
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help=f"Directory to work in. It is kept.  [default: {FOLDER}, removed after the check]",
)
@click.option(
    "--seed",
    type=int,
    default=None,
    metavar="N",
    help="Seed of all random decisions.  [default: random]",
)
def command(
    seconds: float, keys: int, kill_every: float, store: Path | None, seed: int | None
) -> None:
    """Watch an order service at work, and break it.

    Hundreds of customers place orders of six steps each, with failures, retries, timeouts and
    delays. The command prints the address of a page that shows them. Stop the service with Ctrl-C,
    or kill it with kill -9 or --kill-every. The same command resumes it.

    In the end the command checks the store, and compares it with a file that the steps wrote while
    they ran: the orders of each customer ran in order, no order was lost, and no finished step ran
    twice. The exit code is 1 if a guarantee was broken.

    \b
    Examples:
      keyrun demo
      keyrun demo --seconds 20 --kill-every 2
    """
    console = SteadyConsole(highlight=False)
    folder = Path(FOLDER) if store is None else store
    asked = Begun(
        seconds=seconds,
        keys=keys,
        seed=SystemRandom().getrandbits(31) if seed is None else seed,
    )
    begun, before = begin(folder, asked)
    lock = _locked(folder)
    campaign = campaign_of(folder, begun, kill_every)
    for line in opening(folder, begun, campaign.record, before):
        say(console, line)
    console.print()
    verdict = _work(console, campaign, folder)
    pronounce(verdict, console, "orders")
    lock.close()
    if not verdict.ok:
        say(console, f"The store and the evidence are in {folder}.")
        sys.exit(1)
    if store is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        say(console, f"The store is in {folder}. To start a new demo, remove it.")


def _locked(folder: Path) -> TextIO:
    """Return a lock on the demo in `folder`. The lock ends with the process."""
    lock = (folder / "demo.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise click.ClickException(
            f"another process runs the demo in {folder}; wait for it, or use another directory "
            "with --store"
        ) from None
    return lock


def say(console: Console, text: str) -> None:
    """Print a text, wrapped at spaces on a terminal. Elsewhere it is one line."""
    if console.is_terminal:
        room = min(console.width, WIDTH)
        text = fill(text, room, break_long_words=False, break_on_hyphens=False)
    console.print(text, soft_wrap=True)


def opening(folder: Path, begun: Begun, record: CampaignRecord, before: bool) -> list[str]:
    """Return the lines above the picture: the state of the demo, its code, and how to break it."""
    if record.done:
        return [f"The demo in {folder} has finished. This is its proof."]
    if not before:
        first = f"{begun.keys:,} customers place orders for {begun.seconds:g} seconds."
    else:
        how = "was stopped" if record.stopped else "was killed"
        first = (
            f"Resuming the demo in {folder}, which {how} after {record.seconds():.0f} of "
            f"{begun.seconds:g} seconds with {record.acknowledged:,} orders, "
            f"{len(record.reported):,} of them finished."
        )
    return [
        first,
        f"Workflow: {_path(orders.__file__)}",
        f"Steps: {_path(acting.__file__)}",
        f"Store: {folder}",
        f"Stop the demo with Ctrl-C, or kill it with kill -9 {os.getpid()}. The same command "
        "resumes it.",
    ]


def _path(file: str) -> Path:
    """Return a path, relative to the current directory if it is inside of it."""
    path = Path(file)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _work(console: Console, campaign: Campaign, folder: Path) -> Verdict:
    broken: Broken | None = None
    try:
        with stoppable():
            try:
                with DemoPage(folder / "store") as page, DemoDisplay(console) as display:
                    campaign.run(_showing(console, display, page))
            except Broken as error:
                broken = error
            ended = "All orders are finished." if broken is None else "The service failed."
            say(console, f"{ended} Checking the guarantees:")
            with Checking(console) as checking:
                return judge(campaign, broken, folder, checking)
    except KeyboardInterrupt as interrupt:
        say(console, _stopped(campaign, folder, interrupt))
        sys.exit(130)


def _showing(console: Console, display: DemoDisplay, page: DemoPage) -> Callable[[Campaign], None]:
    """Return what shows the progress, and once the address of the page."""
    said = False

    def show(campaign: Campaign) -> None:
        nonlocal said
        if page.address is not None and not said:
            said = True
            say(console, "Open this address to see the customers and their orders:")
            say(console, page.address)
        display.show(campaign)

    return show


def _stopped(campaign: Campaign, folder: Path, interrupt: KeyboardInterrupt) -> str:
    by = "SIGTERM" if isinstance(interrupt, Terminated) else "Ctrl-C"
    after = f"The same command resumes the demo. To start a new one, remove {folder}."
    if campaign.record.done:
        return f"Stopped by {by} during the check. The same command checks again."
    if campaign.record.stopped:
        return f"Stopped by {by}, not killed: the running steps have finished. {after}"
    return f"Stopped by {by}. The service was killed before its running steps finished. {after}"
