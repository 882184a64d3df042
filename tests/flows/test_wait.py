"""The `wait` node: how long it waits, and what survives while it does."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Graph, NodeInput, RunFailed, Runtime, State
from keyrun.flows import parse, wait
from keyrun.graphs import NodeState
from keyrun.storage import MemoryStore
from keyrun.testing import crash_points, open_test_runtime, virtual_wall

WEEKS = 3 * 7 * 86400
done: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()


async def note(given: NodeInput) -> Any:
    done.append("note")
    return given.output


def waiting(field: str) -> Graph:
    """Return a flow that waits as a field of YAML says."""
    return parse(
        f"""
        name: waiting
        nodes:
          first: {{kind: call, function: note}}
          nap: {{kind: wait, {field}}}
          last: {{kind: call, function: note}}
        edges:
          - {{from: first, to: nap}}
          - {{from: nap, to: last}}
        """,
        functions=[note],
    )


async def seconds_of(graph: Graph, run_input: Any = None) -> float:
    """Run a graph and return how long it took."""
    began = trio.current_time()
    async with open_test_runtime(workflows=[graph]) as runtime:
        await (await runtime.submit(graph, run_input, key="k")).result()
        ended = trio.current_time()
    return ended - began


@pytest.mark.parametrize(
    ("field", "run_input", "expected"),
    [
        ("seconds: 90", None, 90),
        ("seconds: 0", None, 0),
        ("seconds: 0.5", None, 0.5),
        ('seconds: "{{ input.minutes * 60 }}"', {"minutes": 5}, 300),
        ('seconds: "{{ input.rest }}"', {"rest": 2.5}, 2.5),
    ],
)
async def test_it_waits_for_a_number_of_seconds(
    autojump_clock: MockClock, field: str, run_input: Any, expected: float
) -> None:
    assert await seconds_of(waiting(field), run_input) == pytest.approx(expected, abs=0.01)


def now() -> datetime:
    """Return the present time of the test runtime."""
    return datetime.fromtimestamp(virtual_wall(), UTC)


BERLIN = timezone(timedelta(hours=1))


@pytest.mark.parametrize("template", [False, True])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{:%Y-%m-%dT%H:%M:%S}Z", 3600),
        ("{:%Y-%m-%d %H:%M:%S.%f}Z", 3600),
        ("{:%Y-%m-%dT%H:%M:%S}+01:00", 0),
        ("{:%Y-%m-%dT%H:%M:%S}-01:00", 7200),
    ],
)
async def test_it_waits_until_a_time_in_any_time_zone(
    autojump_clock: MockClock, text: str, expected: float, template: bool
) -> None:
    until = text.format(now() + timedelta(hours=1))
    graph = waiting(f'until: "{until}"')
    if template:
        graph = waiting('until: "{{ input.date }}{{ input.time }}"')
    taken = await seconds_of(graph, {"date": until[:10], "time": until[10:]})
    assert taken == pytest.approx(expected, abs=1)


async def test_a_template_with_tags_can_give_the_time(autojump_clock: MockClock) -> None:
    until = f"{now() + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    graph = waiting(
        f'until: "{{% if input.late %}}{until}{{% else %}}2020-01-01T00:00Z{{% endif %}}"'
    )
    assert await seconds_of(graph, {"late": True}) == pytest.approx(3600, abs=1)
    assert await seconds_of(graph, {"late": False}) < 0.01


async def test_a_time_of_a_python_program_keeps_its_zone(autojump_clock: MockClock) -> None:
    until = (now() + timedelta(hours=1)).astimezone(BERLIN)
    graph = waiting('until: "{{ input.at }}"')
    assert await seconds_of(graph, {"at": until}) == pytest.approx(3600, abs=1)


@pytest.mark.parametrize("until", ["2020-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"])
async def test_a_time_in_the_past_ends_the_wait_at_once(
    autojump_clock: MockClock, until: str
) -> None:
    assert await seconds_of(waiting(f'until: "{until}"')) < 0.01
    assert done == ["note", "note"]


@pytest.mark.parametrize(
    ("field", "given", "expected"),
    [
        ("seconds", "60", "nodes.nap.seconds requires a number, got text"),
        ("seconds", None, "nodes.nap.seconds requires a number, got null"),
        ("seconds", True, "nodes.nap.seconds requires a number, got true or false"),
        ("seconds", -1, "nodes.nap.seconds: a wait takes from 0 to 10,000,000,000 seconds, got -1"),
        ("seconds", 1e300, "seconds, got 1e+300"),
        (
            "until",
            "2026-12-24T18:00:00",
            "nodes.nap.until: the time '2026-12-24T18:00:00' has no time zone; write "
            "'2026-12-24T18:00:00Z' for UTC, or add an offset such as +01:00",
        ),
        ("until", "tomorrow", "'tomorrow' is not a time; write the date, time and zone, as in"),
        ("until", 1800000000, "'1800000000' is not a time"),
        ("until", "2026-02-30T18:00:00Z", "'2026-02-30T18:00:00Z' is not a time: day is out of"),
        ("until", [], "nodes.nap.until requires text, got a list"),
    ],
)
async def test_a_template_that_gives_no_length_fails_the_node(
    autojump_clock: MockClock, field: str, given: Any, expected: str
) -> None:
    graph = waiting(f'{field}: "{{{{ input.value }}}}"')
    with pytest.raises(RunFailed) as caught:
        await seconds_of(graph, {"value": given})
    assert expected in caught.value.failure.reason
    assert caught.value.failure.step == "nap"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "requires either 'seconds' or 'until', got none"),
        ({"seconds": 1, "until": "2026-12-24T18:00:00Z"}, "got both"),
        ({"seconds": -1}, "a wait takes from 0 to 10,000,000,000 seconds, got -1"),
        ({"until": "2026-12-24T18:00:00"}, "has no time zone"),
    ],
)
def test_wrong_arguments_in_code_are_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        wait(**fields)


async def test_a_wait_of_weeks_leaves_memory_and_survives_restarts(
    autojump_clock: MockClock,
) -> None:
    graph, store = waiting(f"seconds: {WEEKS}"), MemoryStore()
    async with open_test_runtime(store, workflows=[graph], evict_after=1) as runtime:
        began = trio.current_time()
        await runtime.submit(graph, "in", key="k", run_id="r")
        await trio.sleep(7 * 86400)
        assert not list(runtime._partition.runs)
        status = await runtime.status("r")
        assert status is not None
        assert (status.state, status.waiting_on) == (State.WAITING, "timer")
        drawn = await runtime.execution_graph("r")
        assert drawn is not None
        assert [node.state for node in drawn.nodes] == [
            NodeState.DONE,
            NodeState.WAITING,
            NodeState.PENDING,
        ]
        progress = await runtime.progress("r")
        assert progress is not None
        assert progress.waiting_on == "timer"
        store.crash()
    async with open_test_runtime(store, workflows=[graph], evict_after=1) as runtime:
        run = await runtime.submit(graph, "in", key="k", run_id="r")
        await run.result()
        assert trio.current_time() - began == pytest.approx(WEEKS, abs=1)
    assert done == ["note", "note"]


async def test_in_a_loop_each_turn_waits(autojump_clock: MockClock) -> None:
    text = """
    name: turns
    nodes:
      turns:
        kind: loop
        start: 1
        while: output < 8
        body:
          nodes:
            nap: {kind: wait, seconds: "{{ output }}"}
            double: {kind: call, function: double, args: {value: "{{ output }}"}}
          edges: [{from: nap, to: double}]
    """

    async def double(value: int) -> int:
        return 2 * value

    assert await seconds_of(parse(text, functions=[double])) == pytest.approx(7, abs=0.01)


@pytest.mark.parametrize("field", ["seconds: 50", 'until: "{{ input }}"'])
async def test_a_crash_at_any_commit_does_not_start_the_wait_again(
    autojump_clock: MockClock, field: str
) -> None:
    graph = waiting(field)
    until, began = "", 0.0

    async def scenario(runtime: Runtime) -> Any:
        run = await runtime.submit(graph, until, key="k", run_id="r")
        await run.result()
        return trio.current_time() - began

    points = 0
    for point in crash_points():
        points += 1
        until = f"{now() + timedelta(seconds=50):%Y-%m-%dT%H:%M:%S.%f}Z"
        began = trio.current_time()
        assert await point.run(scenario, workflows=[graph]) == pytest.approx(50, abs=5), point
        assert 2 <= len(done) <= 2 + point.crashes
        done.clear()
    assert points > 6
