"""Files with flows: they run, and all that is wrong with them is told at once."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import trio
from trio.testing import MockClock

from keyrun import FailureKind, Graph, NodeInput, Port, Retry, RunFailed, step
from keyrun.flows import InvalidFlow, parse
from keyrun.flows.document import schema
from keyrun.policies import EverySeconds, EverySteps
from keyrun.testing import open_test_runtime
from tests.flows.server import Reply, Server


async def run_flow(graph: Graph, input_: Any = None) -> Any:
    async with open_test_runtime(workflows=[graph]) as runtime:
        return await (await runtime.submit(graph, input_, key="k", run_id="r")).result()


def told(text: str, **options: Any) -> list[tuple[int | None, str]]:
    """What is wrong with a flow."""
    with pytest.raises(InvalidFlow) as caught:
        parse(text, **options)
    return [(each.line, each.message) for each in caught.value.problems]


REPORT = """
name: report
version: 3
fail_fast: true
max_concurrency: 2
limits: {run_timeout: 60, max_iterations: 50}
retry: {max_attempts: 2, delay: 0.001, jitter: 0}
nodes:
  sales:
    kind: http
    url: "{{ input.server }}/sales"
    timeout: 30
  large:
    kind: branch
    when: output.body.total > 100
  bonus:
    kind: code
    args: {total: "{{ outputs.sales.body.total }}"}
    source: |
      def main(data):
          return {"bonus": data["total"] / 10}
    retry: none
  letter:
    kind: call
    function: write
    args: {to: "{{ input.name }}", text: "bonus {{ output.bonus | int }}"}
    priority: high
  nothing:
    kind: call
    function: write
    args: {to: "{{ input.name }}", text: nothing}
edges:
  - {from: sales, to: large}
  - {from: large, to: bonus, port: then}
  - {from: large, to: nothing, port: else}
  - {from: bonus, to: letter}
"""


@step
async def write(to: str, text: str) -> str:
    return f"{to}: {text}"


async def test_a_flow_runs_with_its_nodes_edges_and_templates(server: Server) -> None:
    server.replies = [Reply(status=503), Reply(body={"total": 120})]
    graph = parse(REPORT, functions=[write])
    assert (graph.name, graph.version, graph.fail_fast, graph.max_concurrency) == (
        "report",
        3,
        True,
        2,
    )
    result = await run_flow(graph, {"server": server.url, "name": "Ann"})
    assert result == {"letter": "Ann: bonus 12"}
    assert len(server.requests) == 2


async def test_the_other_port_leads_elsewhere(server: Server) -> None:
    server.replies = [Reply(body={"total": 100})]
    graph = parse(REPORT, functions=[write])
    result = await run_flow(graph, {"server": server.url, "name": "Ann"})
    assert result == {"nothing": "Ann: nothing"}


async def test_a_file_is_yaml_or_json_by_its_name(tmp_path: Path) -> None:
    flow = {"name": "sum", "nodes": {"a": {"kind": "call", "function": "f"}}}
    (tmp_path / "flow.json").write_text(json.dumps(flow))
    (tmp_path / "flow.yaml").write_text("name: sum\nnodes: {a: {kind: call, function: f}}")

    async def named(given: NodeInput) -> int:
        return 7

    for name in ("flow.json", "flow.yaml"):
        graph = Graph.from_file(tmp_path / name, functions={"f": named})
        assert await run_flow(graph) == 7


async def test_code_may_be_in_a_file_beside_the_flow(tmp_path: Path) -> None:
    (tmp_path / "sum.py").write_text("def main(data): return sum(data['input'])")
    (tmp_path / "flow.yaml").write_text("name: s\nnodes: {a: {kind: code, file: sum.py}}")
    assert await run_flow(Graph.from_file(tmp_path / "flow.yaml"), [1, 2]) == 3


async def test_a_function_may_leave_by_ports() -> None:
    text = """
    name: ports
    nodes:
      check: {kind: call, function: check, ports: [good, bad]}
      yes: {kind: call, function: say, args: {word: "yes"}}
      no: {kind: call, function: say, args: {word: "no"}}
    edges:
      - {from: check, to: yes, port: good}
      - {from: check, to: no, port: bad}
    """

    async def check(given: NodeInput) -> Port:
        return Port("good" if given.run_input else "bad", given.run_input)

    async def say(word: str) -> str:
        return word

    graph = parse(text, functions=[check, say])
    assert await run_flow(graph, True) == {"yes": "yes"}
    assert await run_flow(graph, False) == {"no": "no"}


async def test_a_failure_can_be_taken_care_of(autojump_clock: MockClock) -> None:
    text = """
    name: careful
    nodes:
      risky: {kind: call, function: risky, retry: {shape: fixed, max_attempts: 2, delay: 5}}
      repair: {kind: call, function: say, args: {word: "repaired {{ error.attempt }}"}}
    edges: [{from: risky, to: repair, on: fail}]
    """

    async def risky(given: NodeInput) -> None:
        raise ValueError("no")

    async def say(word: str) -> str:
        return word

    assert await run_flow(parse(text, functions=[risky, say])) == {"repair": "repaired 2"}


async def test_a_branch_whose_condition_has_no_answer_fails_for_good() -> None:
    graph = parse("name: b\nnodes: {a: {kind: branch, when: input.missing > 1}}")
    with pytest.raises(RunFailed, match="no 'missing'") as caught:
        await run_flow(graph, {})
    assert caught.value.failure.kind is FailureKind.PERMANENT_ERROR
    assert caught.value.failure.attempt == 1


WRONG = """
name: 7
nodse: {}
max_output: 0
limits: {run_timeout: -1, speed: 3}
nodes:
  fetch:
    kind: htp
  a:
    kind: http
    method: FETCH
    url: "http://{{ input. }}/"
    json: {deep: ["{{ x | nofilter }}"]}
    timeout: 0
    retry: {shape: fixed, factor: 2}
  b:
    kind: call
    function: nothing
  c:
    kind: code
    source: "def main(:"
  d: {kind: branch, when: "output.x >"}
  e: {kind: http, url: "http://x", json: 1, body: x}
  f: {about: nothing}
  g: [1]
  c: {kind: code, language: perl, source: x}
edges:
  - {from: a, to: nowhere}
  - {from: b, to: c, on: sometimes}
  - {from: b, to: a, when: "nope == 1"}
  - {from: a, to: b}
  - {from: d, to: e, port: maybe}
  - {to: e}
  - a
"""


def test_a_template_about_what_there_is_not_is_told() -> None:
    found = told("name: a\nnodes:\n  x: {kind: http, url: 'http://x/{{ inptu.a }}{{ why }}'}\n")
    names = "input, output, outputs, port, error, failures, iteration, run, env"
    assert found == [
        (3, "nodes.x.url: there is no name 'inptu'; did you mean 'input'?"),
        (3, "nodes.x.url: 'why' is not available in this node; its templates can use " + names),
    ]


def test_all_that_is_wrong_is_told_at_once_with_its_line() -> None:
    found = told(WRONG)
    expected = [
        (2, "name: must be text, got 7"),
        (3, "nodse: unknown field; did you mean 'nodes'?"),
        (4, "max_output: must be at least 1, got 0"),
        (5, "limits.run_timeout: must be greater than 0, got -1"),
        (5, "limits.speed: unknown field; the fields of limits are run_timeout,"),
        (8, "nodes.fetch.kind: must be one of http, code,"),
        (11, "nodes.a.method: must be one of GET, HEAD,"),
        (12, "nodes.a.url: the template cannot be parsed: expected name or number"),
        (13, "nodes.a.json.deep[0]: there is no filter 'nofilter'"),
        (14, "nodes.a.timeout: must be greater than 0, got 0"),
        (15, "nodes.a.retry.factor: unknown field; the fields of a retry policy with"),
        (18, "nodes.b.function: there is no function 'nothing'; no functions were given"),
        (22, "nodes.d.when: in 'output.x >', column 11: expected a value"),
        (23, "nodes.e.body: a request has one body, got json and body"),
        (24, "nodes.f: requires the field 'kind': one of http,"),
        (25, "nodes.g: must be a mapping, got a list"),
        (26, "the name 'c' is used twice, first in line 19"),
        (26, "nodes.c.language: must be one of python, javascript, wasm; got 'perl'"),
        (28, "edges[0].to: there is no node 'nowhere'"),
        (29, "edges[1].on: must be one of complete, fail, all; got 'sometimes'"),
        (30, "edges[2].when: in 'nope == 1', column 1: there is no name 'nope'"),
        (30, "edges[2].to: 'a' -> 'b' -> 'a' is a cycle; add 'back: true'"),
        (32, "edges[4].port: 'd' has no port 'maybe'"),
        (33, "edges[5]: requires the field 'from'"),
        (34, "edges[6]: must be a mapping with the fields of an edge, got 'a'"),
    ]
    for line, message in expected:
        assert any(at == line and message in said for at, said in found), (line, message, found)
    assert found == sorted(found, key=lambda each: each[0] or 0)


def test_of_arguments_that_cannot_be_read_nothing_else_is_told() -> None:
    def greet(name: str) -> None:
        pass

    with pytest.raises(InvalidFlow) as caught:
        parse(
            "name: a\nnodes:\n  x: {kind: call, function: greet, args: {name: '{{ nope }}'}}\n",
            functions=[greet],
        )
    (problem,) = caught.value.problems
    assert problem.message.startswith("nodes.x.args.name: there is no name 'nope'")


def test_of_edges_between_the_same_nodes_the_one_that_is_wrong_is_told() -> None:
    found = told("""\
name: f
nodes:
  a: {kind: branch, when: "true"}
  b: {kind: branch, when: "true"}
edges:
  - {from: a, to: b, on: fail}
  - {from: a, to: b, port: then}
  - {from: a, to: b, port: x}
""")
    ((line, said),) = found
    assert line == 8
    assert said.startswith("edges[2].port: 'a' has no port 'x'; its ports are 'then', 'else'")


def test_an_error_names_the_file_and_the_line_as_compilers_do(tmp_path: Path) -> None:
    path = tmp_path / "flow.yaml"
    path.write_text("name: a\nnodes:\n  b: {kind: http}\n")
    with pytest.raises(InvalidFlow) as caught:
        Graph.from_file(path)
    said = "nodes.b: requires the field 'url': The address, with http:// or https://."
    assert str(caught.value) == f"{path}:3: {said}"
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[1]", 1, "must be a mapping with the fields of a flow, got a list"),
        ("just text", 1, "must be a mapping with the fields of a flow, got 'just text'"),
        ("name: a", 1, "requires the field 'nodes'"),
        ("name: a\nnodes: {}", 2, "must not be empty"),
        ("name: a\nnodes: [x]", 2, "must be a mapping from names to nodes, got a list"),
        ("name: a\nnodes: {x: {kind: [1]}}", 2, "must be one of"),
        ("name: a\nnodes: {'x/y': {kind: branch, when: 'true'}}", 2, "without '#', '/'"),
        ("name: a\nnodes: {x: {kind: branch, when: 'true'}}\nedges: 3", 3, "must be a list"),
        ("name: a\nnodes: {x: {kind: code}}", 2, "requires the field 'source' with the code"),
        (
            "name: a\nnodes: {x: {kind: code, file: y}}",
            2,
            "only a flow that is in a file can name a file",
        ),
        (
            "name: a\nnodes: {x: {kind: agent, model: m}}",
            2,
            "requires the field 'prompt' or the field 'messages'",
        ),
        (
            f"name: a\nnodes:\n  x: {{kind: branch, when: '{'!' * 1000}true'}}",
            3,
            "1,004 characters",
        ),
        ("name: a\nnodes: &n {x: *n}", 2, "inside of the value that it stands for"),
        (
            "name: a\nnodes:\n  x: {kind: code, source: |\n    1}\n",
            3,
            "is not YAML",
        ),
    ],
)
def test_what_is_no_flow_is_refused_with_the_line(text: str, line: int, message: str) -> None:
    found = told(text)
    assert any(at == line and message in said for at, said in found), found


def test_arguments_that_do_not_fit_their_function_are_told() -> None:
    text = "name: a\nnodes:\n  x: {kind: call, function: write, args: {wrong: 1}}\n"
    ((line, message),) = told(text, functions=[write])
    assert line == 3
    assert "'to'" in message


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("none", Retry.none()),
        ("{}", Retry.exponential()),
        (
            "{max_attempts: 5, delay: 2, factor: 3}",
            Retry.exponential(max_attempts=5, base=2, factor=3),
        ),
        ("{shape: linear, delay: 2, max_delay: 9}", Retry.linear(step=2, max_delay=9)),
        ("{shape: fixed, delay: 2, jitter: 0}", Retry.fixed(delay=2, jitter=0)),
    ],
)
def test_a_retry_policy_is_what_the_file_says(text: str, policy: Retry) -> None:
    graph = parse(f"name: a\nnodes:\n  x: {{kind: http, url: 'http://x', retry: {text}}}\n")
    assert graph.nodes[0].options["retry"] == policy


def test_what_holds_for_a_graph_is_what_the_file_says() -> None:
    text = "name: a\nnodes: {x: {kind: http, url: 'http://u'}}\n"
    graph = parse(f"{text}instances: 3\nwhen_full: reject\ncheckpoint: {{steps: 5}}\n")
    assert (graph.instances, graph.when_full) == (3, "reject")
    assert graph.checkpoint == EverySteps(5)
    assert parse(f"{text}checkpoint: {{seconds: 2}}\n").checkpoint == EverySeconds(2)
    ((line, message),) = told(f"{text}checkpoint: {{steps: 1, seconds: 2}}\n")
    assert (line, message) == (
        3,
        "checkpoint: requires either 'steps' or 'seconds'",
    )


VALID = [
    REPORT,
    "name: a\nnodes: {x: {kind: http, url: 'http://u', timeout: none, retry: {shape: fixed}}}",
    "name: a\nnodes: {x: {kind: code, source: main = 1, retry: {factor: 3}, at_most_once: true}}",
    "name: a\nnodes: {x: {kind: loop, while: 'true', body: {nodes: {y: {kind: http, url: 'http://u'}}}}}",
    "name: a\nnodes: {x: {kind: agent, model: m, messages: [{role: user, content: x}]}}",
]
INVALID = [
    WRONG,
    "name: a",
    "name: ''\nnodes: {x: {kind: http, url: 'http://u'}}",
    "name: a\nnodes: {}",
    "name: a\nnodes: {x: {kind: http}}",
    "name: a\nnodes: {x: {kind: http, url: 'http://u', ports: [a]}}",
    "name: a\nnodes: {x: {kind: http, url: 'http://u', retry: {shape: fixed, factor: 3}}}",
    "name: a\nnodes: {x: {kind: loop, while: 'true', body: {nodes: {}}}}",
    "name: a\nnodes: {x: {kind: loop, while: 'true', body: {nodes: {y: {kind: z}}}}}",
    "name: a\nversion: true\nnodes: {x: {kind: http, url: 'http://u'}}",
    "name: a\nnodes: {x: {kind: http, url: 'http://u'}}\nedges: [{from: x}]",
]


@pytest.mark.parametrize("text", VALID + INVALID)
def test_the_schema_for_editors_says_what_keyrun_says(text: str) -> None:
    from keyrun.flows.source import read_yaml

    described = schema()
    jsonschema.Draft202012Validator.check_schema(described)
    accepted = jsonschema.Draft202012Validator(described).is_valid(read_yaml(text).value)
    assert accepted == (text in VALID)
    try:
        parse(text, functions=[write])
    except InvalidFlow:
        assert text in INVALID
    else:
        assert text in VALID


def test_every_field_of_the_schema_says_what_it_is_for() -> None:
    def fields(value: Any) -> Any:
        if isinstance(value, dict):
            for name, each in value.get("properties", {}).items():
                yield name, each
            for each in value.values():
                yield from fields(each)
        elif isinstance(value, list):
            for each in value:
                yield from fields(each)

    for name, each in fields(schema()):
        assert each.get("description"), name


async def test_no_flow_reaches_python_through_what_it_names() -> None:
    for name in ("os.system", "__import__", "builtins.eval", "keyrun.flows.load"):
        found = told(f"name: a\nnodes: {{x: {{kind: call, function: {name}}}}}", functions=[write])
        assert f"there is no function '{name}'" in found[0][1]
    args = "{to: a, text: '{{ input.__class__ }}'}"
    text = f"name: a\nnodes: {{x: {{kind: call, function: write, args: {args}}}}}"
    with pytest.raises(RunFailed, match="a template may not use '__class__'"):
        await run_flow(parse(text, functions=[write]), {})


GUARDED = """
name: guarded
resources: {cpu: 4}
nodes:
  risky:
    kind: call
    function: risky
    retry: none
    breaker: {minimum_calls: 2, failure_rate: 0.5, open_for: 60}
    fallback: cached
    resources: {cpu: 2}
    max_concurrent: 2
    priority: low
  cached: {kind: call, function: write, args: {to: cached, text: "{{ input }}"}}
"""


async def risky(given: NodeInput) -> None:
    raise ValueError("no")


async def test_a_node_goes_to_its_fallback_while_its_breaker_is_open(
    autojump_clock: MockClock,
) -> None:
    graph = parse(GUARDED, functions=[write, risky])
    async with open_test_runtime(workflows=[graph]) as runtime:
        for _ in range(2):
            with pytest.raises(RunFailed, match="ValueError: no"):
                await (await runtime.submit(graph, 1, key="k")).result()
        run = await runtime.submit(graph, 2, key="k")
        assert await run.result() == {"cached": "cached: 2"}


async def test_a_rate_holds_over_all_runs(autojump_clock: MockClock) -> None:
    text = "name: slow\nnodes: {tick: {kind: call, function: tick, rate: {count: 2, per: 10}}}"
    times: list[float] = []

    async def tick(given: NodeInput) -> None:
        times.append(trio.current_time())

    graph = parse(text, functions=[tick])
    async with open_test_runtime(workflows=[graph]) as runtime:
        runs = [await runtime.submit(graph, key=f"k{number}") for number in range(5)]
        for run in runs:
            await run.result()
    assert [after - before for before, after in pairwise(times)] == pytest.approx([5] * 4)


def test_policies_that_cannot_be_are_told_with_their_lines() -> None:
    found = told(
        "name: a\n"
        "resources: {cpu: 2}\n"
        "nodes:\n"
        "  a: {kind: http, url: 'http://u', breaker: {minimum_calls: 9, window_calls: 3}}\n"
        "  b: {kind: http, url: 'http://u', rate: {per: 3}}\n"
        "  c: {kind: http, url: 'http://u', resources: {cpu: 3}}\n"
        "  d: {kind: http, url: 'http://u', fallback: nobody}\n"
        "  e: {kind: branch, when: 'true', rate: {count: 1}}\n"
    )
    for line, message in [
        (4, "minimum_calls must be at most window_calls"),
        (5, "nodes.b.rate: requires the field 'count'"),
        (6, "needs cpu=3, but the quota is 2"),
        (7, "'nobody'"),
        (8, "nodes.e.rate: unknown field"),
    ]:
        assert any(at == line and message in said for at, said in found), found
