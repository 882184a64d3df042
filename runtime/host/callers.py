"""Callers: tell code that calls a runtime from the wrong place which import is right.

A runtime belongs to the place that it was opened from: a Trio program, a loop of asyncio, or
threads. A call from elsewhere would hang, or wake tasks of another loop.
"""

import sys
from threading import get_ident

import trio
from sniffio import thread_local

_IN_THREAD = "in a thread without a loop"
_OPEN = {
    "on Trio": "keyrun.open_runtime",
    "on asyncio": "keyrun.asyncio.open_runtime",
    _IN_THREAD: "keyrun.sync.open_runtime",
}
"""The function that opens a runtime for code that runs in each place."""
_BESIDE_ASYNCIO = (
    "in an endpoint of a web framework, write `async def`; in another thread, use "
    "asyncio.run_coroutine_threadsafe; "
)


def on_trio(thread: int) -> bool:
    """Return whether this code runs on Trio, and not on asyncio on top of Trio, in a thread."""
    return thread_local.name == "trio" and get_ident() == thread


def forked(process: int) -> RuntimeError:
    """Return the error for a call of a runtime that was opened in another process."""
    return RuntimeError(
        f"this runtime was opened before the process forked, and belongs to the parent process "
        f"{process}; open the runtime in the child, after the fork (with gunicorn: without "
        "--preload, or in the post_fork hook)"
    )


def wrong_caller(place: str) -> RuntimeError:
    """Return the error for a call from here of a runtime that was opened for code that runs
    `place`, which is `on Trio` or `on asyncio`."""
    here = _here()
    if here == place:
        return RuntimeError(
            f"this runtime was opened with {_OPEN[place]} on another event loop: call it on that "
            "loop, or open a runtime on this one"
        )
    beside = _BESIDE_ASYNCIO if place == "on asyncio" and here == _IN_THREAD else ""
    return RuntimeError(
        f"this runtime was opened with {_OPEN[place]}, and this code runs {here}: in a step, use "
        f"current_step().runtime; in a workflow, call ctx; {beside}in a program, open the runtime "
        f"with {_OPEN[here]}"
    )


def _here() -> str:
    """Return where this code runs."""
    if "asyncio" in sys.modules and thread_local.name != "trio":
        import asyncio

        if asyncio._get_running_loop() is not None:
            return "on asyncio"
    return "on Trio" if trio.lowlevel.in_trio_task() else _IN_THREAD
