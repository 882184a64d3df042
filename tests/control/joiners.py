"""Processes and tasks that share a store."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

import keyrun
from keyrun import Context, Entity, Runtime, current_step, entity, step, workflow


@step
async def write(path: str, line: str) -> str:
    """Append a line to a file."""
    with Path(path).open("a") as file:
        file.write(f"{line}\n")
    return line


@workflow
async def append(ctx: Context, lines: list[str]) -> str:
    """Append lines to a file, each in a step."""
    path, *rest = lines
    for line in rest:
        await ctx.step(write, path, line)
    return rest[-1]


@step
async def sleep(seconds: float) -> None:
    await trio.sleep(seconds)


@workflow
async def hold(ctx: Context, seconds: float) -> None:
    """Keep a step running."""
    await ctx.step(sleep, seconds)


@step
async def resources() -> str:
    return str(current_step().resources)


@workflow
async def tell_resources(ctx: Context) -> str:
    return await ctx.step(resources)


@workflow
async def wait_for_go(ctx: Context) -> str:
    return str(await ctx.wait_signal("go"))


@entity
class Account(Entity):
    async def deposit(self, amount: int = 1) -> int:
        self.state["balance"] = balance = self.state.get("balance", 0) + amount
        return int(balance)


WORKFLOWS = [append, hold, tell_resources, wait_for_go]
OPTIONS: dict[str, Any] = {"workflows": WORKFLOWS, "entities": [Account]}


def member(store: Any, **options: Any) -> Any:
    """Open a runtime that shares a store."""
    return keyrun.open_runtime(store, **{**OPTIONS, "when_locked": "join", **options})


def owns(rt: Any) -> bool:
    """Return whether a Trio runtime that shares a store owns the store."""
    return rt.engine is not None


class Leaver:
    """A member of a store in a task of its own, so that members can leave in any order."""

    def __init__(self) -> None:
        self._over = trio.Event()
        self._ended = trio.Event()
        self.rt: Runtime
        self.error: BaseException | None = None

    async def run(
        self, store: object, options: dict[str, Any], task_status: "trio.TaskStatus[Leaver]"
    ) -> None:
        try:
            async with member(store, **options) as self.rt:
                task_status.started(self)
                await self._over.wait()
        except Exception as error:
            if not hasattr(self, "rt"):
                raise
            self.error = error
        finally:
            self._ended.set()

    async def leave(self) -> None:
        """Leave the block, and wait until it is left."""
        self._over.set()
        await self._ended.wait()

    async def failed(self) -> BaseException:
        """Wait until the block has ended with an error, and return the error."""
        await self._ended.wait()
        assert self.error is not None
        return self.error


class Crowd:
    """Members of one store in this process."""

    def __init__(self, nursery: trio.Nursery, store: object) -> None:
        self._nursery = nursery
        self._store = store
        self.members: list[Leaver] = []

    async def join(self, *, store: object = None, **options: Any) -> Leaver:
        """Open one more."""
        path = self._store if store is None else store
        found: Leaver = await self._nursery.start(Leaver().run, path, options)
        self.members.append(found)
        return found


@asynccontextmanager
async def crowd(store: object) -> AsyncIterator[Crowd]:
    """Open members of one store, and let all of them leave at the end."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            found = Crowd(nursery, store)
            yield found
            for each in reversed(found.members):
                await each.leave()


async def until_owner(rt: Any) -> None:
    """Wait until a runtime owns its store."""
    with trio.fail_after(20):
        while not owns(rt):
            await trio.sleep(0.002)


class Owner:
    """Another process that has a store open."""

    def __init__(self, store: "str | os.PathLike[str]", **options: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.control.joiners", os.fspath(store), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "open\n"
        self.child: int | None = None
        """A forked child of the process, which does nothing."""

    def fork(self) -> None:
        """Let it fork a child."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("fork\n")
        self._process.stdin.flush()
        self.child = int(self._process.stdout.readline())

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop it with SIGSTOP, so that it does nothing and keeps the store."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        self._process.send_signal(signal.SIGCONT)

    def leave(self) -> None:
        """Let it leave its block."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0

    def close(self) -> None:
        """Kill it if it still runs."""
        self.kill()
        if self.child is not None:
            os.kill(self.child, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def other_owner(store: "str | os.PathLike[str]", **options: Any) -> Iterator[Owner]:
    """Let another process own a store."""
    owner = Owner(store, **options)
    try:
        yield owner
    finally:
        owner.close()


def _obey() -> None:
    """Fork for each line of the input, until the input ends."""
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            signal.pause()
        print(child, flush=True)


async def _main(store: str, **options: Any) -> None:
    async with member(store, **options):
        print("open", flush=True)
        await trio.to_thread.run_sync(_obey)


if __name__ == "__main__":
    trio.run(partial(_main, sys.argv[1], **json.loads(sys.argv[2])))
