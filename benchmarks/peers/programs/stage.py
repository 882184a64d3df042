"""The stage of a program: it reads its order, does it, and tells what it found as JSON lines.

A program whose parent is gone ends itself with all that it started: the parent holds the other end
of its standard input. What a program does not use it does not import: for some works its start is
a part of what is measured.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping
from threading import Thread
from time import sleep
from typing import Any, NoReturn, TypeAlias

from benchmarks.peers.programs.gauge import family
from benchmarks.peers.programs.order import Order

Facts: TypeAlias = dict[str, float]
"""What was measured, by name."""

Act: TypeAlias = Callable[[Order], Facts]
AsyncAct: TypeAlias = Callable[[Order], Coroutine[Any, Any, Facts]]


def perform(acts: Mapping[str, Act]) -> None:
    """Do what the command line orders."""
    order = Order.parse(sys.argv[1])
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        tell(**acts[order.act](order))
    except BaseException:
        traceback.print_exc()
        end(1)
    # Loops, pools and servers of peers may take long to close, or never do.
    end()


def perform_in(
    loop: Callable[[AsyncAct, Order], Facts],
    *acts: AsyncAct,
) -> None:
    """The same for acts that need a loop, such as `trio.run`."""

    def started(act: AsyncAct) -> Act:
        return lambda order: loop(act, order)

    perform({act.__name__: started(act) for act in acts})


def in_asyncio(act: AsyncAct, order: Order) -> Facts:
    """The loop of asyncio, for `perform_in`."""
    import asyncio

    return asyncio.run(act(order))


def tell(**facts: object) -> None:
    """One line for the parent."""
    print(json.dumps(facts), flush=True)


def stay() -> NoReturn:
    """Wait to be killed."""
    while True:
        sleep(3600)


def end(status: int = 0) -> NoReturn:
    """Kill what this process started, and leave."""
    for pid in family(os.getpid()) - {os.getpid()}:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    os._exit(status)


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    end(1)
