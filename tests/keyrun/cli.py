"""The command line for its tests: in this process or in one of its own, and a store to look at."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import trio
from click.testing import CliRunner, Result
from trio.testing import MockClock

from keyrun import Context, PermanentError, Retry, RunFailed, step, workflow
from keyrun.cli.group import command
from keyrun.storage import LmdbStore
from keyrun.testing import open_test_runtime


class Terminal(CliRunner):
    """A runner whose input and output are a terminal."""

    @contextmanager
    def isolation(self, *args: Any, **options: Any) -> Iterator[tuple[BytesIO, BytesIO, BytesIO]]:
        """Put streams in the place of the real ones. They say that they are a terminal."""
        with super().isolation(*args, **options) as streams:
            for stream in (sys.stdin, sys.stdout, sys.stderr):
                setattr(stream, "isatty", lambda: True)  # noqa: B010
            yield streams


def invoke(
    *words: object,
    env: dict[str, str | None] | None = None,
    text: str = "",
    columns: int | None = None,
) -> Result:
    """Call `keyrun` in this process. What is not its own error is raised here.

    The output is a pipe, or a terminal without colours that is `columns` wide.
    """
    clean: dict[str, str | None] = {"COLUMNS": None, "NO_COLOR": None, "FORCE_COLOR": None}
    if columns is not None:
        clean |= {"COLUMNS": str(columns), "NO_COLOR": "1"}
    clean |= env or {}
    result = (CliRunner() if columns is None else Terminal()).invoke(
        command,
        [str(word) for word in words],
        env=clean,
        input=text,
        prog_name="keyrun",
        terminal_width=columns,
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def lines(*words: object, **options: Any) -> list[str]:
    """What `keyrun` prints when all is fine."""
    result = invoke(*words, **options)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def shell(
    *words: object, cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Call `keyrun` through its real entry point."""
    return subprocess.run(
        [Path(sys.executable).parent / "keyrun", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=60,
        env={**os.environ, **environ},
    )


@step(retry=Retry.fixed(max_attempts=3, delay=10, jitter=0))
async def charge(order: dict[str, Any]) -> str:
    if order["amount"] > 100:
        raise PermanentError("card\ndeclined")
    return f"receipt for {order['amount']}"


@workflow
async def checkout(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    receipt = await ctx.step(charge, order)
    if order.get("sleep"):
        await ctx.sleep(order["sleep"])
    return {"receipt": receipt, "amount": order["amount"]}


tries: list[int] = []


@step(retry=Retry.fixed(max_attempts=3, delay=10, jitter=0))
async def flaky() -> None:
    tries.append(1)
    if len(tries) % 2:
        raise ValueError("not yet")


@workflow
async def refund(ctx: Context) -> None:
    await ctx.step(flaky)


LONG_KEY = "a customer with a very long name, longer than any table is wide" * 2


async def _fill(path: Path) -> None:
    async with open_test_runtime(LmdbStore(path), workflows=[checkout, refund]) as runtime:
        first = await runtime.submit(
            checkout,
            {"amount": 1},
            key="alice",
            run_id="r1",
            tags=["eu", "new"],
            headers={"trace": "t"},
        )
        await first.result()
        await trio.sleep(100)
        failed = await runtime.submit(checkout, {"amount": 200}, key="bob", run_id="r2")
        with suppress(RunFailed):
            await failed.result()
        await trio.sleep(100)
        await (await runtime.submit(refund, key="alice", run_id="r3", tags=["eu"])).result()
        await runtime.submit(checkout, {"amount": 2, "sleep": 1e6}, key="carol", run_id="r4")
        await runtime.submit(checkout, {"amount": 3}, key="carol", run_id="r5")
        await runtime.submit(checkout, {"amount": 4, "sleep": 1e6}, key=LONG_KEY, run_id="r6" * 20)
        await trio.sleep(1)
        await (await runtime.submit(refund, key="\x1b[31mred\n", run_id="r7")).result()


def make_store(path: Path) -> Path:
    """A store with seven runs, of which two keys have some left, on virtual time."""
    tries.clear()
    trio.run(_fill, path, clock=MockClock(autojump_threshold=0))
    return path
