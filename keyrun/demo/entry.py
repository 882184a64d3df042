"""`keyrun demo`: the service at work, and in the end the proof that it kept its promises."""

import fcntl
import json
import shutil
import sys
from pathlib import Path
from random import SystemRandom
from textwrap import fill
from typing import TextIO

import attrs
import cattrs
import click
from rich.console import Console

from keyrun.demo.display import WIDTH, Display
from keyrun.demo.orders import Orders
from keyrun.stress.campaign import CHILD, Assignment, Broken, Campaign, stoppable
from keyrun.stress.record import Record
from keyrun.stress.report import pronounce
from keyrun.stress.verdict import Verdict, judge

FOLDER = "keyrun-demo"
BEGUN = "demo.json"
MANY = 1_000_000_000


@attrs.frozen(kw_only=True)
class Begun:
    """What a demo was begun with; it is kept beside the store, for whoever goes on with it."""

    seconds: float
    keys: int
    seed: int


def begin(folder: Path, asked: Begun) -> tuple[Begun, bool]:
    """What the demo in `folder` was begun with, and whether it was there before."""
    file = folder / BEGUN
    if file.exists():
        return cattrs.structure(json.loads(file.read_text()), Begun), True
    if folder.exists() and any(folder.iterdir()):
        raise click.BadParameter(f"{folder} is not empty, and not of a demo", param_hint="--store")
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(attrs.asdict(asked)))
    return asked, False


def campaign_of(folder: Path, begun: Begun, kill_every: float) -> Campaign:
    """The work that is left to do."""
    orders = Orders(keys=begun.keys, seed=begun.seed)
    assignment = Assignment(
        folder=folder,
        planner="keyrun.demo.orders:Orders",
        options=attrs.asdict(orders),
        workflow="keyrun.demo.orders:order",
        keys=begun.keys,
        runs=MANY,
        seconds=begun.seconds,
        crash_every=kill_every,
        seed=begun.seed,
        backlog=1,
        slots=begun.keys,
        child=CHILD,
    )
    return Campaign(assignment, Record(orders, begun.keys))


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
    delays. Stop it with Ctrl-C, or kill -9 it, from outside or with --kill-every; the same command
    goes on where it stopped. In the end it proves from the store, and from a file that the steps
    wrote as they ran, that every customer was served in order, that nothing was lost, and that no
    finished step ran twice.

    \b
    Examples:
      keyrun demo
      keyrun demo --seconds 20 --kill-every 2
    """
    console = Console(highlight=False)
    folder = Path(FOLDER) if store is None else store
    asked = Begun(
        seconds=seconds,
        keys=keys,
        seed=SystemRandom().getrandbits(31) if seed is None else seed,
    )
    begun, before = begin(folder, asked)
    alone = _alone_in(folder)
    campaign = campaign_of(folder, begun, kill_every)
    say(console, _opening(folder, begun, campaign.record, before))
    verdict = _work(console, campaign, folder)
    pronounce(verdict, console, "orders")
    alone.close()
    if not verdict.ok:
        say(console, f"The store and the evidence are in {folder}.")
        sys.exit(1)
    if store is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        say(console, f"The store is in {folder}; remove it to begin anew.")


def _alone_in(folder: Path) -> TextIO:
    """A lock on the demo in `folder`, which ends with the process, however that ends."""
    lock = (folder / "demo.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise click.ClickException(
            f"a demo is running in {folder}; wait for it, or give another folder with --store"
        ) from None
    return lock


def say(console: Console, text: str) -> None:
    """Print a text, wrapped at spaces on a terminal. Elsewhere it is one line."""
    if console.is_terminal:
        room = min(console.width, WIDTH)
        text = fill(text, room, break_long_words=False, break_on_hyphens=False)
    console.print(text, soft_wrap=True)


def _opening(folder: Path, begun: Begun, record: Record, before: bool) -> str:
    if not before:
        return (
            f"{begun.keys:,} customers place orders for {begun.seconds:g} seconds. "
            f"All is kept in {folder}: stop it or kill it, and the same command goes on."
        )
    if record.done:
        return f"The demo in {folder} is finished; this is its proof."
    return (
        f"Going on in {folder} after {record.seconds():.0f} of {begun.seconds:g} seconds, with "
        f"{record.acknowledged:,} orders placed and {len(record.told):,} done."
    )


def _work(console: Console, campaign: Campaign, folder: Path) -> Verdict:
    broken: Broken | None = None
    try:
        with stoppable(), Display(console) as display:
            try:
                campaign.run(display.show)
            except Broken as error:
                broken = error
        say(console, "Now the proof.")
        return judge(campaign, broken, folder)
    except KeyboardInterrupt:
        say(console, f"Stopped. The same command goes on; remove {folder} to begin anew.")
        sys.exit(130)
