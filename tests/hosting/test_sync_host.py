"""Keyrun for threads."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

import keyrun.sync
from keyrun import RunFailed, StoreClosed
from keyrun.groups import Member
from keyrun.storage import MemoryStore
from keyrun.storage.errors import StoreCrashed
from keyrun.sync import open_runtime
from keyrun.testing import CrashingMemoryStore
from tests.hosting.workflows import (
    ALL,
    Counter,
    adding,
    fails,
    keyrun_threads,
    one,
    submits,
    uses_resources,
    waits,
)


@pytest.fixture(autouse=True)
def no_threads_are_left() -> Iterator[None]:
    yield
    assert not keyrun_threads()


def test_every_method_blocks_until_it_is_done() -> None:
    with open_runtime(MemoryStore(), workflows=ALL, entities=[Counter]) as rt:
        run = rt.submit(adding, 1, key="k", run_id="r")
        assert run.result() == 112
        status = rt.status("r")
        assert status is not None
        assert status.state == "succeeded"
        assert [entry.event for entry in rt.history("r")][-1] == "succeeded"
        assert [progress.state for progress in rt.watch("r")] == ["succeeded"]
        assert rt.call(Counter, "c", "add", 3) == 3
        group = rt.submit_group(
            "g", [Member(one, n, key=f"k{n}", member_id=f"m{n}") for n in (1, 2)]
        )
        assert sorted(outcome.result or 0 for outcome in group) == [2, 3]
        with pytest.raises(RunFailed, match="ValueError: no"):
            rt.submit(fails, key="k").result()
        assert rt.statistics().backlog.pending == 0


def test_events_are_an_iterator() -> None:
    with open_runtime(MemoryStore(), workflows=ALL) as rt, rt.events(run_id="r") as events:
        rt.submit(one, 1, key="k", run_id="r")
        kinds = []
        for event in events:
            kinds.append(event.kind)
            if event.kind == "run_succeeded":
                break
        assert kinds[0] == "run_submitted"


def test_events_outside_of_a_block_name_the_block() -> None:
    with (
        open_runtime(MemoryStore(), workflows=ALL) as rt,
        pytest.raises(RuntimeError, match=r"use `with runtime\.events\(\) as events:`"),
    ):
        next(rt.events())


def test_many_threads_submit_at_once_in_order_per_key() -> None:
    with open_runtime(MemoryStore(), workflows=ALL) as rt:

        def client(key: int) -> list[int]:
            return [rt.submit(one, n, key=f"k{key}").result() for n in range(20)]

        with ThreadPoolExecutor(32) as pool:
            assert list(pool.map(client, range(32))) == [list(range(1, 21))] * 32


def test_every_kind_of_step_can_submit_a_run_and_wait_for_it() -> None:
    with open_runtime(MemoryStore(), workflows=ALL) as rt:
        assert rt.submit(submits, key="k").result() == [2, 3, 4]


def test_a_lifespan_may_be_a_plain_or_an_async_context_manager() -> None:
    left = []

    @contextmanager
    def plain() -> Iterator[str]:
        yield "plain"
        left.append(threading.current_thread().name)

    @asynccontextmanager
    async def on_trio() -> AsyncIterator[str]:
        yield "async"
        left.append(threading.current_thread().name)

    with open_runtime(MemoryStore(), workflows=ALL, lifespan=plain) as rt:
        assert rt.submit(uses_resources, key="k").result() == ["plain"] * 3
    with open_runtime(MemoryStore(), workflows=ALL, lifespan=on_trio) as rt:
        assert rt.submit(uses_resources, key="k").result() == ["async"] * 3
    assert left == [threading.current_thread().name, "keyrun"]


def test_an_open_that_fails_raises_in_the_caller(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no store")
    with pytest.raises(keyrun.StoreError), open_runtime(tmp_path / "file"):
        pass
    with (
        pytest.raises(ValueError, match="max_pending must be"),
        open_runtime(MemoryStore(), max_pending=0),
    ):
        pass


def test_a_started_runtime_stays_open_until_stop(tmp_path: Path) -> None:
    rt = keyrun.sync.start(tmp_path / "state", workflows=ALL)
    assert rt.submit(one, 1, key="k").result() == 2
    rt.stop()
    rt.stop()
    with pytest.raises(StoreClosed):
        rt.submit(one, 1, key="k")


def test_a_store_that_fails_raises_in_the_callers_and_at_the_end() -> None:
    store = CrashingMemoryStore()
    with pytest.raises(StoreCrashed), open_runtime(store, workflows=ALL) as rt:
        run = rt.submit(waits, key="k")
        store.crash_at(1, applied=False)
        with pytest.raises(StoreCrashed):
            rt.submit(one, 1, key="k2")
        with pytest.raises(StoreClosed):
            run.result()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_to_open_the_runtime_itself() -> None:
    with open_runtime(MemoryStore(), workflows=ALL) as rt:
        child = os.fork()
        if child == 0:
            try:
                rt.submit(one, 1, key="k")
            except RuntimeError as error:
                os._exit(0 if "after the fork" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


FORKS = """
import os, sys
import keyrun.sync
from keyrun.storage import MemoryStore
from tests.hosting.workflows import ALL, one

def leave(how):
    if how == "exit":
        sys.exit(7)
    raise LookupError("left")

def block(how):
    with keyrun.sync.open_runtime(MemoryStore(), workflows=ALL) as rt:
        child = os.fork()
        if not child:
            leave(how)
        assert rt.submit(one, 1, key="k").result() == 2
        return os.waitpid(child, 0)[1]

def started(how):
    rt = keyrun.sync.start(MemoryStore(), workflows=ALL)
    child = os.fork()
    if not child:
        leave(how)
    assert rt.submit(one, 1, key="k").result() == 2
    return os.waitpid(child, 0)[1]

status = {"block": block, "started": started}[sys.argv[1]](sys.argv[2])
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("opened", ["block", "started"])
@pytest.mark.parametrize(("how", "code"), [("exit", 7), ("raise", 1)])
def test_a_forked_child_can_end_while_the_runtime_of_its_parent_continues(
    opened: str, how: str, code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, opened, how],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == str(code), done.stderr


def test_ctrl_c_ends_an_open_that_waits_for_the_lock(tmp_path: Path) -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with open_runtime(tmp_path / "state"):
        timer = threading.Timer(0.3, interrupt)
        timer.start()
        with (
            pytest.raises(KeyboardInterrupt),
            open_runtime(tmp_path / "state", when_locked="wait", lock_timeout=3600),
        ):
            pass
        timer.join()


def test_a_program_that_ends_without_stop_drains(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import keyrun.sync\n"
        "from tests.hosting.workflows import ALL, one\n"
        f"rt = keyrun.sync.start({str(tmp_path / 'state')!r}, workflows=ALL)\n"
        "print(rt.submit(one, 1, key='k').result())\n"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
    assert time.monotonic() - began < 30


async def test_the_sync_runtime_names_the_right_import_on_trio() -> None:
    with (
        pytest.raises(RuntimeError, match=r"use keyrun\.open_runtime"),
        open_runtime(MemoryStore()),
    ):
        pass


def test_the_trio_runtime_names_the_sync_import_outside_of_a_loop() -> None:
    with pytest.raises(RuntimeError, match=r"use keyrun\.sync\.open_runtime"):
        keyrun.open_runtime(MemoryStore()).__aenter__().send(None)
