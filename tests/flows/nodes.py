"""Nodes on their own: run as the one step of a workflow, in a real runtime."""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from keyrun import Context, Failure, Retry, RunFailed, workflow
from keyrun.runtime.definitions.step import step
from keyrun.testing import open_test_runtime

QUICK = Retry.fixed(max_attempts=3, delay=0.001, jitter=0)


@attrs.frozen(kw_only=True)
class Given:
    """What a graph gives to a node."""

    run_input: Any = None
    output: Any = None
    outputs: dict[str, Any] = attrs.field(factory=dict)
    port: str | None = None
    error: Any = None
    failures: dict[str, Any] = attrs.field(factory=dict)
    iteration: int = 0
    item: Any = None


async def run_node(
    node: Callable[[Any], Awaitable[Any]],
    run_input: Any = None,
    *,
    timeout: float = 60,
    retry: Retry = QUICK,
    **given: Any,
) -> Any:
    """What the node gives, as the result of a run; `RunFailed` if it fails."""

    @workflow(name="alone")
    async def alone(ctx: Context, value: Any) -> Any:
        what = Given(run_input=value, **given)
        return await ctx.step(step(node).options(name="node", timeout=timeout, retry=retry), what)

    async with open_test_runtime(workflows=[alone]) as runtime:
        run = await runtime.submit(alone, run_input, key="k", run_id="r")
        return await run.result()


async def failure_of(node: Callable[[Any], Awaitable[Any]], *args: Any, **more: Any) -> Failure:
    """How the node fails."""
    try:
        value = await run_node(node, *args, **more)
    except RunFailed as failed:
        return failed.failure
    raise AssertionError(f"it gave {value!r}")
