"""Fingerprints tell changed code from formatted code, and a runtime warns of changed code."""

import ast
import logging
import textwrap
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, Continue, Graph, NodeInput, Succeed, Turn, Workflow, step, workflow
from keyrun import machine as make_machine
from keyrun.graphs import durable
from keyrun.runtime.definitions.fingerprint import of_function
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime

PLAIN = '''
async def pay(ctx, order: dict) -> str:
    """Pay."""
    # The card first.
    receipt = await ctx.step(charge, order["id"], amount=1.50)
    if receipt is not None and order.get("note", f"no {order['id']:>5} note"):
        return (f"paid {receipt!r} " "and" f" noted")
    return 'unpaid'
'''
FORMATTED = """
@anything(version=1)
async def pay(
    ctx,
    order: dict,
) -> str:
    '''Another docstring.

    With two paragraphs.'''
    receipt = await ctx.step(
        charge,
        order['id'],
        amount=1.5,
    )
    if (receipt is not None) and order.get('note', f'no {order["id"]:>5} note'):
        return f'paid {receipt!r} and noted'
    return "unpaid"
"""


def anything(**_: Any) -> Any:
    return lambda function: function


def load(folder: Path, source: str, name: str = "pay") -> Any:
    """What a module with this source calls `name`."""
    file = folder / f"m{len(list(folder.iterdir()))}.py"
    file.write_text(textwrap.dedent(source))
    space: dict[str, Any] = {"anything": anything}
    exec(compile(file.read_text(), str(file), "exec"), space)
    return space[name]


def test_formatting_comments_docstrings_and_decorators_do_not_count(tmp_path: Path) -> None:
    one, other = load(tmp_path, PLAIN), load(tmp_path, FORMATTED)
    assert of_function(one) == of_function(other) is not None


def test_no_version_of_python_gives_another_fingerprint(tmp_path: Path) -> None:
    """The value is that of Python 3.11; the tests run on every version."""
    found = of_function(load(tmp_path, PLAIN))
    assert found is not None
    assert found.hex() == "3c9b0300e8b4b8d6"


def test_a_later_python_may_divide_f_strings_and_add_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def example() -> str:
        return f"a{1}bc"

    plain = of_function(example)
    parse = ast.parse

    def other(source: str) -> ast.Module:
        tree = parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                (*first, last) = node.values
                assert isinstance(last, ast.Constant)
                node.values = [*first, ast.Constant("b"), ast.Constant(""), ast.Constant("c")]
            if isinstance(node, ast.FunctionDef):
                node._fields = (*node._fields, "type_params_of_tomorrow")  # type: ignore[misc]
                node.type_params_of_tomorrow = []  # type: ignore[attr-defined]
        return tree

    monkeypatch.setattr(ast, "parse", other)
    assert of_function(example) == plain


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.50", "2"),
        ("1.50", "True"),
        ("charge", "refund"),
        ("is not", "is"),
        (">5", ">6"),
        ("'unpaid'", "b'unpaid'"),
        ("!r", "!s"),
        ("await ctx", "ctx"),
        ("if receipt", "while receipt"),
        ("    return 'unpaid'", "    await ctx.sleep(1)\n    return 'unpaid'"),
    ],
)
def test_a_change_of_the_code_counts(tmp_path: Path, old: str, new: str) -> None:
    assert old in PLAIN
    one, other = load(tmp_path, PLAIN), load(tmp_path, PLAIN.replace(old, new))
    assert of_function(one) != of_function(other)


def test_code_whose_source_cannot_be_read_has_no_fingerprint(tmp_path: Path) -> None:
    space: dict[str, Any] = {}
    exec(PLAIN, space)
    assert of_function(space["pay"]) is None
    function = load(tmp_path, PLAIN)
    (tmp_path / "m0.py").write_text("def other():\n    pass\n" * 4)
    assert of_function(function) is None


@step
async def note(given: Any = None) -> None: ...


def function(changed: bool) -> Workflow[Any, Any]:
    if changed:

        @workflow(name="flow")
        async def flow(ctx: Context) -> None:
            await ctx.sleep(1000)
            await ctx.step(note)

    else:

        @workflow(name="flow")
        async def flow(ctx: Context) -> None:
            await ctx.sleep(1000)

    return flow


def machine(changed: bool) -> Workflow[Any, Any]:
    if changed:

        @make_machine(name="flow")
        async def flow(t: Turn) -> Any:
            return Succeed(1) if t.number else Continue(after=1000)

    else:

        @make_machine(name="flow")
        async def flow(t: Turn) -> Any:
            return Succeed(2) if t.number else Continue(after=1000)

    return flow


def graph(changed: bool) -> Workflow[Any, Any]:
    @durable
    async def pause(ctx: Context, given: NodeInput) -> None:
        await ctx.sleep(1000)

    flow = Graph("flow")
    flow.node("pause", pause)
    flow.node("note", note)
    flow.edge("pause", "note", on="all" if changed else "complete")
    return flow


def graph_code(changed: bool) -> Workflow[Any, Any]:
    flow = Graph("flow")
    if changed:

        @durable
        async def pause(ctx: Context, given: NodeInput) -> None:
            await ctx.sleep(1001)

    else:

        @durable
        async def pause(ctx: Context, given: NodeInput) -> None:
            await ctx.sleep(1000)

    flow.node("pause", pause)
    return flow


KINDS = pytest.mark.parametrize("make", [function, machine, graph, graph_code])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [each for each in caplog.records if getattr(each, "event", "") == "code_changed"]
    assert all(each.levelno == logging.WARNING for each in records)
    return [each.getMessage() for each in records]


@KINDS
async def test_an_open_warns_once_of_runs_that_other_code_started(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, make: Any
) -> None:
    store, old = MemoryStore(), make(False)
    async with open_test_runtime(store, workflows=[old]) as runtime:
        for number in range(3):
            await runtime.submit(old, key=f"k{number}")
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[make(False)]):
        assert warnings(caplog) == []
    async with open_test_runtime(store, workflows=[make(True)]) as runtime:
        (said,) = warnings(caplog)
        assert "workflow 'flow' version 1" in said
        assert "3 unfinished runs were started by other code" in said
        assert "keyrun.testing.replay" in said
        await trio.sleep(5000)
    caplog.clear()
    async with open_test_runtime(store, workflows=[make(False)]):
        assert warnings(caplog) == []


async def test_runs_that_have_not_started_warn_of_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store, old = MemoryStore(), function(False)
    async with open_test_runtime(store, workflows=[old]) as runtime:
        await runtime.pause_all()
        await runtime.submit(old, key="a")
        await runtime.submit(old, key="b", delay=500)
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[function(True)]) as runtime:
        await runtime.resume_all()
        await trio.sleep(1)
        assert warnings(caplog) == []
    async with open_test_runtime(store, workflows=[function(True)]):
        assert warnings(caplog) == []
    async with open_test_runtime(store, workflows=[old]):
        assert len(warnings(caplog)) == 1


async def test_continue_as_starts_with_the_code_of_today(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def looping(changed: bool) -> Workflow[Any, Any]:
        if changed:

            @workflow(name="flow")
            async def flow(ctx: Context) -> None:
                await ctx.sleep(1000)
                await ctx.step(note)
                ctx.continue_as()

        else:

            @workflow(name="flow")
            async def flow(ctx: Context) -> None:
                await ctx.sleep(1000)
                ctx.continue_as()

        return flow

    store, old = MemoryStore(), looping(False)
    async with open_test_runtime(store, workflows=[old]) as runtime:
        await runtime.submit(old, key="k")
        await trio.sleep(10)
    for _ in range(2):
        async with open_test_runtime(store, workflows=[looping(True)]) as runtime:
            await trio.sleep(1500)
    assert len(warnings(caplog)) == 1


async def test_an_inline_first_step_is_enough_to_have_started(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The fingerprint is stored with the first stop of a run."""

    def stepping(changed: bool) -> Workflow[Any, Any]:
        if changed:

            @workflow(name="flow")
            async def flow(ctx: Context) -> None:
                await ctx.step(note, 1)
                await ctx.wait_signal("later")

        else:

            @workflow(name="flow")
            async def flow(ctx: Context) -> None:
                await ctx.step(note, 1)
                await ctx.wait_signal("go")

        return flow

    store, old = MemoryStore(), stepping(False)
    async with open_test_runtime(store, workflows=[old]) as runtime:
        await runtime.submit(old, key="k")
        await trio.sleep(1)
        store.crash()
    async with open_test_runtime(store, workflows=[stepping(True)]):
        assert len(warnings(caplog)) == 1
