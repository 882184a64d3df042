"""The registered workflows are listed with the schemas of their inputs and results."""

from decimal import Decimal

import attrs
from trio.testing import MockClock

from keyrun import Context, Graph, NodeInput, Succeed, Turn, machine, open_reader, workflow
from keyrun.status import WorkflowKind
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime


@attrs.frozen
class Order:
    """What a customer wants."""

    sku: str
    price: Decimal | None = None


@workflow
async def ship(ctx: Context, order: Order) -> list[str]:
    """Ship an order
    to its customer.

    The steps follow."""
    return [order.sku]


@workflow(name="ship", version=2)
async def ship_again(ctx: Context) -> None: ...


@machine()
async def count(turn: Turn) -> Succeed:
    return Succeed(1)


async def node(given: NodeInput) -> int:
    return 1


graph = Graph("plan")
graph.node("first", node)


async def test_workflows_are_listed_with_their_schemas(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[ship_again, ship, count, graph]) as rt:
        found = await rt.workflows()
    async with open_reader(store, workflows=[ship, ship_again, count, graph]) as reader:
        assert await reader.workflows() == found
    assert [(each.name, each.version, each.kind) for each in found] == [
        ("count", 1, WorkflowKind.MACHINE),
        ("plan", 1, WorkflowKind.GRAPH),
        ("ship", 1, WorkflowKind.FUNCTION),
        ("ship", 2, WorkflowKind.FUNCTION),
    ]
    turns, plan, first, second = found
    for untyped in (turns, plan):
        assert (untyped.input_schema, untyped.result_schema) == (None, None)
        assert untyped.description is None
    assert first.description == "Ship an order to its customer."
    assert first.input_schema is not None
    assert first.input_schema["$ref"] == "#/$defs/Order"
    assert first.input_schema["$defs"]["Order"]["required"] == ["sku"]
    assert first.result_schema is not None
    assert first.result_schema["type"] == "array"
    assert second.input_schema is not None
    assert second.input_schema["type"] == "null"
