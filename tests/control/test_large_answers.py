"""Large answers: no request holds the event loop, or reads more than a page."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from time import thread_time
from typing import Any

import pytest
import trio

from keyrun import Context, open_runtime, workflow
from keyrun.control.answers import is_large, text_of
from keyrun.control.guard import TokenGuard
from keyrun.control.http import HttpApi
from keyrun.control.json_text import dump
from keyrun.control.owner import Owner
from keyrun.control.table import OPERATIONS
from keyrun.storage import MemoryStore
from tests.control.world import Exchange

MOST_HELD = 0.02 if sys.gettrace() is None else 0.1
"""Seconds of CPU time between two passes of the loop. Far more than a good answer needs, and far
less than writing one of these answers at once takes. Python is slower while a tracer measures the
coverage."""


@workflow
async def build(ctx: Context, count: int) -> list[dict[str, Any]]:
    return [{"number": number, "text": "x" * 20} for number in range(count)]


@workflow
async def nothing(ctx: Context, _: None) -> None:
    pass


class Watch:
    """Measures how long the loop does not turn, in CPU time of its thread."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        last = thread_time()
        while True:
            await trio.lowlevel.checkpoint()
            now = thread_time()
            self.longest = max(self.longest, now - last)
            last = now


@asynccontextmanager
async def watched() -> AsyncIterator[tuple[Any, Any]]:
    """Open a runtime with large values and many runs, and yield it with a function that returns the
    answer to a GET and how long it has held the loop."""
    async with open_runtime(MemoryStore(), workflows=[build, nothing], max_pending=100_000) as rt:
        api = HttpApi(Owner(rt), TokenGuard())

        async def get(target: str, body: bytes = b"") -> tuple[Any, float]:
            watch = Watch()
            headers = [("content-type", "application/json")] if body else []
            exchange: Any = Exchange("POST" if body else "GET", target, body, headers=headers)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch.run)
                await trio.lowlevel.checkpoint()
                await api(exchange.scope, exchange.receive, exchange.send)
                nursery.cancel_scope.cancel()
            assert exchange.answer.status == 200
            return exchange.answer.json, watch.longest

        yield rt, get


async def test_a_large_result_does_not_hold_the_loop() -> None:
    async with watched() as (rt, get):
        await (await rt.submit(build, 40_000, key="k", run_id="r")).result()
        for target in ("/v1/runs/r", "/v1/runs/r/result", "/v1/runs/r/history", "/v1/runs"):
            held = [await get(target) for _ in range(3)]
            assert min(longest for _, longest in held) < MOST_HELD, target
            text = json.dumps(held[0][0])
            assert text.count('"number"') >= 40_000


async def test_a_page_of_many_runs_does_not_hold_the_loop() -> None:
    async with watched() as (rt, get):
        await rt.pause_all()
        async with trio.open_nursery() as nursery:
            for number in range(3000):
                nursery.start_soon(partial(rt.submit, nothing, key=f"k{number}"))
        for target in ("/v1/runs?limit=100000", "/v1/keys?limit=100000"):
            held = [await get(target) for _ in range(3)]
            assert min(longest for _, longest in held) < MOST_HELD, target
            (items,) = (each for each in held[0][0].values() if isinstance(each, list))
            assert len(items) > 100


async def test_a_large_batch_does_not_hold_the_loop() -> None:
    async with watched() as (rt, ask):
        await rt.pause_all()
        runs = [{"workflow": "nothing", "key": f"k{number}"} for number in range(9000)]
        body = json.dumps({"runs": runs}).encode()
        held = [(await ask("/v1/batches", body))[1] for _ in range(3)]
        assert min(held) < MOST_HELD, held


@pytest.mark.parametrize(
    "value",
    [
        None,
        "x" * 100_000,
        ["x", {"a": None, "b": [1, 2.5, True]}],
        {"a": list(range(2000)), "b": {}, "c": [], 'd"é\n': "é" * 50_000},
        [[[["x"] * 500]]] * 3,
        [{"a": {"b": {"c": list(range(400))}}}, "x"],
        {str(number): [number] for number in range(1000)},
    ],
)
async def test_a_text_in_parts_is_the_text_at_once(value: Any) -> None:
    operation = OPERATIONS["result"]
    assert await text_of(operation, value) == dump({"result": value})


def test_a_small_value_is_written_at_once() -> None:
    assert not is_large({"a": list(range(100)), "b": "x" * 1000})
    assert is_large({"a": list(range(1000))})
    assert is_large("x" * 100_000)
    assert is_large([[list(range(50)) for _ in range(10)]])
