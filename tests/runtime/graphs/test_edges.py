"""Edges: which of them are taken, and what comes of failures."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Graph, NodeInput, Retry, State
from keyrun.testing import open_test_runtime
from tests.runtime.graphs.nodes import Log, ended, events_of, failure_of, result_of


async def test_a_port_chooses_the_edge_and_the_target_sees_it() -> None:
    log = Log()
    graph = Graph("g")
    graph.node("check", log.leaves("valid", {"n": 1}), ports=("valid", "invalid"))
    graph.node("go", log.node())
    graph.node("named", log.node())
    graph.node("stop", log.node())
    graph.edge("check", "go", port="valid")
    graph.edge("check", "named", port="valid", to_port="inbox")
    graph.edge("check", "stop", port="invalid")
    assert await result_of(graph) == {"go": "go", "named": "named"}
    assert log.given["go"].port == "valid"
    assert log.given["named"].port == "inbox"
    assert log.given["go"].output == {"n": 1}


async def test_an_edge_without_port_is_taken_whatever_the_port() -> None:
    log = Log()
    graph = Graph("g")
    graph.node("check", log.leaves("b"), ports=("a", "b"))
    graph.node("next", log.node())
    graph.edge("check", "next")
    assert await result_of(graph) == "next"


async def test_a_node_with_ports_may_leave_by_none() -> None:
    log = Log()
    graph = Graph("g")
    graph.node("check", log.node(), ports=("a",))
    graph.node("a", log.node())
    graph.node("always", log.node())
    graph.edge("check", "a", port="a")
    graph.edge("check", "always")
    assert await result_of(graph) == {"always": "always"}


async def test_a_port_that_was_not_declared_is_a_permanent_error() -> None:
    log = Log()
    graph = Graph("g")
    graph.node("check", log.leaves("other"), ports=("valid",))
    failure = await failure_of(graph)
    assert failure.kind == "permanent_error"
    assert "'other'" in failure.reason
    assert "'valid'" in failure.reason
    assert log.begun == ["check"]


async def test_a_fail_edge_takes_care_of_a_failure() -> None:
    log = Log()
    graph = Graph("g")
    graph.node("charge", log.fails())
    graph.node("confirm", log.node())
    graph.node("alert", log.node())
    graph.edge("charge", "confirm")
    graph.edge("charge", "alert", on="fail")
    assert await result_of(graph) == {"alert": "alert"}
    error = log.given["alert"].error
    assert error is not None
    assert error.step == "charge"
    assert error.kind == "permanent_error"


@pytest.mark.parametrize("fails", [False, True])
async def test_an_edge_on_all_is_taken_either_way(fails: bool) -> None:
    log = Log()
    graph = Graph("g")
    graph.node("try", log.fails() if fails else log.node())
    graph.node("finally", log.node())
    graph.edge("try", "finally", on="all")
    assert await result_of(graph) == "finally"
    assert (log.given["finally"].error is not None) == fails


async def test_a_failure_without_fail_edge_fails_the_run_when_the_others_are_done(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    graph = Graph("g")
    graph.node("bad", log.fails(1))
    graph.node("after", log.node())
    graph.node("slow", log.node(5))
    graph.node("last", log.node())
    graph.node("both", log.node())
    graph.edge("bad", "after")
    graph.edge("slow", "last")
    graph.edge("bad", "both")
    graph.edge("slow", "both")
    failure = await failure_of(graph)
    assert failure.step == "bad"
    assert log.lines == ["+bad", "+slow", "-slow", "+last", "-last"]


async def test_fail_fast_cancels_what_is_running_and_says_so(autojump_clock: MockClock) -> None:
    log = Log()
    graph = Graph("g", fail_fast=True)
    graph.node("bad", log.fails(1))
    graph.node("slow", log.node(50))
    graph.node("stubborn", log.flaky(9))
    graph.node("next", log.node())
    graph.edge("slow", "next")
    state, events = await events_of(graph)
    assert state is State.FAILED
    assert ("step_failed", "bad") in events
    assert ("step_cancelled", "slow") in events
    assert ("step_cancelled", "stubborn") in events
    assert not any(step == "next" for _, step in events)
    assert trio.current_time() < 10


async def test_a_failure_that_is_taken_care_of_is_not_fast() -> None:
    log = Log()
    graph = Graph("g", fail_fast=True)
    graph.node("bad", log.fails())
    graph.node("mend", log.node())
    graph.node("other", log.node())
    graph.edge("bad", "mend", on="fail")
    assert await result_of(graph) == {"mend": "mend", "other": "other"}


async def test_skipping_spreads_but_not_past_a_join_that_has_another_way() -> None:
    log = Log()
    graph = Graph("g")
    graph.node("check", log.leaves("yes"), ports=("yes", "no"))
    for name in ("yes", "no", "no2", "join"):
        graph.node(name, log.node())
    graph.edge("check", "yes", port="yes")
    graph.edge("check", "no", port="no")
    graph.edge("no", "no2")
    graph.edge("no2", "join")
    graph.edge("yes", "join")
    assert await result_of(graph) == "join"
    assert log.begun == ["check", "yes", "join"]


async def test_a_join_with_no_way_left_is_skipped() -> None:
    log = Log()
    graph = Graph("g")
    graph.node("check", log.leaves("c"), ports=("a", "b", "c"))
    for name in ("a", "b"):
        graph.node(name, log.node())
        graph.edge("check", name, port=name)
    graph.node("join", log.node())
    graph.edge("a", "join")
    graph.edge("b", "join")
    assert await result_of(graph) is None
    assert log.begun == ["check"]


CASES: list[tuple[str, Any, bool]] = [
    ("output.n == 3", {"n": 3}, True),
    ("output.n != 3", {"n": 3}, False),
    ("output.n < 4", {"n": 3}, True),
    ("output.n <= 3", {"n": 3}, True),
    ("output.n > 3", {"n": 3}, False),
    ("output.n >= 3.0", {"n": 3}, True),
    ('output.s == "x" && output.n > 100', {"s": "x", "n": 101}, True),
    ('output.s == "x" && output.n > 100', {"s": "y", "n": 101}, False),
    ('output.s == "x" || output.n > 100', {"s": "y", "n": 101}, True),
    ("!(output.n == 3)", {"n": 3}, False),
    ("output.a.b[1].c == 'deep'", {"a": {"b": [0, {"c": "deep"}]}}, True),
    ("has(output.n) && output.n > 1", {}, False),
    ("'x' in output.tags", {"tags": ["x", "y"]}, True),
    ("output.tags.exists(tag, tag.startsWith('y'))", {"tags": ["x", "yy"]}, True),
    ("input.level > 1", {}, True),
    ("outputs.first == output", {"any": "thing"}, True),
    ("error == null", {}, True),
    ("true", None, True),
]


@pytest.mark.parametrize(("when", "output", "taken"), CASES)
async def test_a_condition_decides(when: str, output: Any, taken: bool) -> None:
    log = Log()

    async def first(given: NodeInput) -> Any:
        return output

    graph = Graph("g")
    graph.node("first", first)
    graph.node("next", log.node())
    graph.edge("first", "next", when=when)
    await result_of(graph, {"level": 2})
    assert bool(log.begun) is taken


@pytest.mark.parametrize(
    ("when", "output", "said"),
    [
        ("output.missing > 1", {"n": 1}, "there is no 'missing' in 'output.missing > 1'"),
        ("output.n > 'x'", {"n": 1}, "cannot be evaluated"),
        ("output.n", {"n": 1}, "gave 1, but a condition must be true or false"),
        ("output.n / 0 == 1", {"n": 1}, "cannot be evaluated"),
        ("output.n < 3", None, "output is null here"),
    ],
)
async def test_a_condition_without_answer_fails_the_run_and_names_the_edge(
    when: str, output: Any, said: str
) -> None:
    async def first(given: NodeInput) -> Any:
        return output

    graph = Graph("g")
    graph.node("first", first)
    graph.node("next", Log().node())
    graph.edge("first", "next", when=when)
    failure = await failure_of(graph)
    assert failure.kind == "workflow_error"
    assert "'first' -> 'next'" in failure.reason
    assert said in failure.reason


async def test_payloads_are_data_for_conditions() -> None:
    log = Log()

    async def first(given: NodeInput) -> str:
        return '" || true || "'

    graph = Graph("g")
    graph.node("first", first)
    graph.node("next", log.node())
    graph.edge("first", "next", when='output == "x"')
    await result_of(graph)
    assert log.begun == []


async def test_port_kind_and_condition_must_all_fit() -> None:
    log = Log()
    graph = Graph("g")
    graph.node("check", log.leaves("a", 5), ports=("a", "b"))
    for name, options in {
        "all fit": {"port": "a", "when": "output == 5"},
        "other port": {"port": "b", "when": "output == 5"},
        "not true": {"port": "a", "when": "output == 6"},
        "failed": {"on": "fail", "when": "output == 5"},
        "either": {"on": "all", "port": "a", "when": "output == 5"},
    }.items():
        graph.node(name, log.node())
        graph.edge("check", name, **options)  # type: ignore[arg-type]
    await result_of(graph)
    assert log.begun == ["check", "all fit", "either"]


async def test_a_condition_can_be_about_the_error() -> None:
    log = Log()
    graph = Graph("g")
    graph.node("bad", log.fails())
    graph.node("mend", log.node())
    graph.node("other", log.node())
    graph.edge("bad", "mend", on="fail", when='error.kind == "permanent_error"')
    graph.edge("bad", "other", on="fail", when='error.kind == "step_timeout"')
    assert await result_of(graph) == {"mend": "mend"}


async def test_a_fail_edge_whose_condition_is_false_takes_care_of_nothing() -> None:
    log = Log()
    graph = Graph("g")
    graph.node("bad", log.fails())
    graph.node("mend", log.node())
    graph.edge("bad", "mend", on="fail", when="false")
    assert (await failure_of(graph)).step == "bad"


async def test_a_failed_graph_is_a_dead_letter_and_redrives_what_failed(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    broken = [True]

    async def mendable(given: NodeInput) -> str:
        log.lines.append("+mendable")
        if broken:
            raise ValueError("still broken")
        return "mended"

    graph = Graph("g")
    graph.node("first", log.node())
    graph.node("handled", log.fails())
    graph.node("handler", log.node(1))
    graph.node("bad", mendable, retry=Retry.none())
    graph.node("end", log.node())
    graph.edge("first", "bad")
    graph.edge("first", "handled")
    graph.edge("handled", "handler", on="fail")
    graph.edge("handler", "end")
    graph.edge("bad", "end")
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await ended(run)
        assert [letter.run_id for letter in await runtime.dead_letters()] == ["r"]
        broken.clear()
        log.lines.clear()
        await runtime.redrive("r")
        assert await run.result() == {"end": "end"}
    assert log.lines == ["+mendable", "+end", "-end"]
