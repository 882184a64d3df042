"""The table of operations: each entry has what is derived from it."""

import pytest

from keyrun.control.operation import Operation
from keyrun.control.shapes import JSON, WIRE
from keyrun.control.table import OPERATIONS

EACH = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda each: each.name)


@EACH
def test_the_types_of_an_operation_have_a_schema_and_can_be_written_and_read(
    operation: Operation,
) -> None:
    JSON.schema(operation.result)
    assert callable(operation.write_json)
    assert callable(operation.write_wire)
    assert callable(WIRE.reader(operation.result))
    for parameter in operation.parameters.values():
        JSON.schema(parameter.declared)
        assert callable(WIRE.reader(parameter.declared))


@EACH
def test_an_operation_has_one_line_of_help(operation: Operation) -> None:
    assert operation.summary.endswith(".")
    assert len(operation.summary) < 200


def test_no_two_operations_have_the_same_route() -> None:
    routes = [(each.verb, each.path) for each in OPERATIONS.values() if each.path]
    assert len(set(routes)) == len(routes)
