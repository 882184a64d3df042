"""Who watches a store does not disturb who writes to it."""

import os
import sys
import textwrap
from pathlib import Path

import trio

from keyrun import Context, open_runtime, step, workflow
from keyrun.storage import verify

WATCHER = """
    import io, sys
    from contextlib import redirect_stdout
    from keyrun.cli.group import command

    store = sys.argv[1]
    for turn in range(8):
        for words in (
            ["runs", store],
            ["runs", store, "--json", "--limit", "0"],
            ["runs", store, "--state", "failed"],
            ["status", store, "first"],
            ["history", store, "first"],
            ["keys", store],
            ["dead-letters", store],
        ):
            with redirect_stdout(io.StringIO()):
                try:
                    command(words)
                except SystemExit as end:
                    if end.code:
                        sys.exit(f"{words}: {end.code}")
"""


@step
async def double(number: int) -> int:
    return 2 * number


@workflow
async def work(ctx: Context, number: int) -> int:
    return await ctx.step(double, number)


async def test_a_runtime_that_is_watched_all_the_time_goes_on_as_if_it_were_not(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data.mdb"
    watching = True
    done = 0

    async def hammer(name: str) -> None:
        nonlocal done
        while watching:
            run = await runtime.submit(work, done, key=name)
            await run.result()
            # What is forgotten leaves pages that can be used again, if no reader pins them.
            await runtime.forget(run.run_id)
            done += 1

    async with open_runtime(tmp_path, workflows=[work]) as runtime:
        await (await runtime.submit(work, 1, key="first", run_id="first")).result()
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(hammer, f"key-{number}")
            with trio.fail_after(60):
                watcher = await trio.run_process(
                    [sys.executable, "-c", textwrap.dedent(WATCHER), str(tmp_path)],
                    capture_stderr=True,
                    check=False,
                )
            watching = False
        assert watcher.returncode == 0, watcher.stderr.decode()
        assert runtime.statistics().commits.commits > done / 8
        readers = runtime._partition.state.store._opened_reads().environment.readers()  # type: ignore[attr-defined]
        pids = {int(row.split()[0]) for row in readers.splitlines() if row.split()[0].isdecimal()}
        assert pids <= {os.getpid()}, readers
    assert done > 100
    # Were one snapshot kept, no page could be used again, and each run would add more than one.
    assert data.stat().st_size < 4096 * (300 + done // 4)
    assert verify(tmp_path).ok
