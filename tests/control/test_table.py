"""The table of operations: it is complete, and each entry has what is derived from it."""

import inspect

import pytest

from keyrun import Runtime
from keyrun.control.operation import Operation
from keyrun.control.shapes import JSON, WIRE
from keyrun.control.table import CALLS, OPERATIONS

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


NOT_OPERATIONS = {
    "entity": "returns a proxy, whose methods are the operation call",
    "run": "returns a handle, whose methods are operations",
    "value": "decodes what the caller already has",
    "submit_nowait": "is the operation submit with nowait",
    "unfinished": "is a part of the operation counts",
    "find_submission": "is for handles: the operation find_run answers what they need",
    "history_page": "the operation stored_page answers it to clients without the transform",
    "status_of": "is for handles: the operation status_of_run answers what they need",
}
"""The public methods of `Runtime` that are no operations, with the reason."""


def test_each_public_method_of_a_runtime_is_an_operation_or_has_a_reason_not_to_be() -> None:
    methods = {
        name
        for name, each in inspect.getmembers(Runtime, callable)
        if not name.startswith("_") and not isinstance(each, type)
    }
    assert methods - CALLS.keys() == NOT_OPERATIONS.keys()


NEEDED = """
    submit submit_many submit_or_signal call signal approve reject cancel pause resume
    redrive forget release_key status history find_runs find_keys find_dead_letters
    find_groups group find_schedules pause_schedule resume_schedule delete_schedule
    entities progress events statistics execution_graph workflows key_view find_approvals
    family policies bulk explain explain_key overview dead_letter_errors
    recent_events
"""


def test_what_operators_and_the_web_page_need_has_a_route() -> None:
    assert {name for name in NEEDED.split() if not OPERATIONS[name].path} == set()


@EACH
def test_each_argument_has_a_description_of_its_own(operation: Operation) -> None:
    if not operation.path:
        return
    abouts = [each.about for each in operation.parameters.values()]
    assert all(each.endswith(".") for each in abouts), abouts
    assert len(set(abouts)) == len(abouts), abouts
