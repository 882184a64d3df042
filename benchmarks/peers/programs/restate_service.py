"""The service of Restate: a virtual object whose handlers are the runs, served by Hypercorn."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from benchmarks.peers.programs.evidence import Inbox, Steps

ARGUMENTS = json.loads(sys.argv[1])
steps = Steps()
inbox = Inbox()
asleep: set[str] = set()
finished: set[str] = set()
bench = restate.VirtualObject("Bench")


async def nothing() -> None:
    """The cheapest step there is."""


@bench.handler()
async def three_steps(ctx: restate.ObjectContext) -> None:
    """Three of them, one after the other."""
    await ctx.run_typed("one", nothing)
    await ctx.run_typed("two", nothing)
    await ctx.run_typed("three", nothing)


@bench.handler()
async def take(ctx: restate.ObjectContext, number: int) -> None:
    """Handle a message, and remember in the state of the key that it was the last."""
    ctx.set("last", number)
    inbox.take(ctx.key(), number)


@bench.handler()
async def job(ctx: restate.ObjectContext) -> None:
    """What is killed in its middle."""
    await ctx.run_typed("first", first)
    await ctx.run_typed("second", second)
    await ctx.run_typed("third", third)
    finished.add(ctx.key())


async def first() -> None:
    """Finished before the kill."""
    steps.mark("first")


async def second() -> None:
    """Blocks until the kill, and returns at once after it."""
    steps.mark("second")
    if ARGUMENTS["blocking"]:
        await asyncio.Event().wait()


async def third() -> None:
    """Only after the restart."""
    steps.mark("third")


@bench.handler()
async def sleeper(ctx: restate.ObjectContext) -> None:
    """What sleeps for longer than anybody looks."""
    asleep.add(ctx.key())
    await ctx.sleep(timedelta(hours=1))


def evidence() -> dict[str, int]:
    """What this process saw."""
    counts = {name: steps.count(name) for name in steps.ran}
    counts |= {"finished": len(finished), "asleep": len(asleep), "handled": inbox.handled}
    return counts | {"disordered": inbox.disordered() if inbox.complete else 0}


Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
handlers: Any = restate.app([bench])


async def application(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Restate's handlers, and beside them what they saw."""
    if scope["type"] != "http" or scope["path"] != "/evidence":
        await handlers(scope, receive, send)
        return
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(evidence()).encode()})


def main() -> None:
    """Serve until killed."""
    inbox.expect(ARGUMENTS["keys"], ARGUMENTS["messages"])
    config = Config()
    config.bind = [f"127.0.0.1:{ARGUMENTS['port']}"]
    config.loglevel = "ERROR"
    config.errorlog = None
    # By default a connection is closed after 1,000 requests, and what was under way is repeated.
    config.keep_alive_max_requests = 1_000_000_000
    config.h2_max_concurrent_streams = 10_000
    asyncio.run(serve(application, config))


if __name__ == "__main__":
    main()
