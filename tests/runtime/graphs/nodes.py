"""What the tests of graphs share: nodes that say what they do, and a way to run a graph."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from keyrun import (
    Failure,
    Graph,
    NodeInput,
    PermanentError,
    Port,
    Retry,
    RunHandle,
    RunStatus,
    State,
    TransientError,
    current_step,
)
from keyrun.testing import open_test_runtime

Function = Callable[[NodeInput], Awaitable[Any]]


class Log:
    """What nodes did, in order: "+name" when one begins, "-name" when it returns."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.given: dict[str, NodeInput] = {}
        self.at: dict[str, float] = {}

    def node(self, seconds: float = 0.0, output: Any = None) -> Function:
        """Takes so long, and returns `output`, or its own name."""

        async def work(given: NodeInput) -> Any:
            me = self._begin(given)
            if seconds:
                await trio.sleep(seconds)
            self.lines.append(f"-{me}")
            return me if output is None else output

        return work

    def leaves(self, port: str, output: Any = None) -> Function:
        """Leaves by a port."""

        async def leave(given: NodeInput) -> Port:
            self._begin(given)
            return Port(port, output)

        return leave

    def fails(self, seconds: float = 0.0) -> Function:
        """Fails for good."""

        async def refuse(given: NodeInput) -> None:
            self._begin(given)
            await trio.sleep(seconds)
            raise PermanentError("refused")

        return refuse

    def flaky(self, failures: int) -> Function:
        """Fails so often first."""

        async def stumble(given: NodeInput) -> str:
            me = self._begin(given)
            if current_step().attempt <= failures:
                raise TransientError("not yet")
            self.lines.append(f"-{me}")
            return me

        return stumble

    def _begin(self, given: NodeInput) -> str:
        me = current_step().step
        self.lines.append(f"+{me}")
        self.given[me] = given
        self.at[me] = trio.current_time()
        return me

    @property
    def begun(self) -> list[str]:
        """The nodes in the order in which they began."""
        return [line[1:] for line in self.lines if line[0] == "+"]


SOON = Retry.fixed(max_attempts=3, delay=1, jitter=0)


async def ended(run: RunHandle[Any]) -> RunStatus:
    """How it stands when it has ended."""
    while True:
        status = await run.status()
        assert status is not None
        if status.state.terminal:
            return status
        await trio.sleep(0.5)


async def result_of(graph: Graph, input_: Any = None) -> Any:
    """What a run of it gives."""
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, input_, key="k", run_id="r")
        return await run.result()


async def failure_of(graph: Graph, input_: Any = None) -> Failure:
    """How a run of it fails."""
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, input_, key="k", run_id="r")
        failure = (await ended(run)).failure
    assert failure is not None
    return failure


async def events_of(graph: Graph, input_: Any = None) -> tuple[State, list[tuple[str, str | None]]]:
    """How a run ends, and what its history says of its nodes."""
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, input_, key="k", run_id="r")
        status = await ended(run)
        events = [(each.event, each.step) for each in await runtime.history("r")]
    return status.state, events
