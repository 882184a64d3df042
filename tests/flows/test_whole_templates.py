"""A template that is the whole value gives the value itself, in every field with templates."""

import json
from typing import Any

import pytest

from keyrun import FailureKind, RunFailed, step, workflow
from keyrun.flows import parse
from tests.flows.server import Reply, Server
from tests.flows.test_files import run_flow, told

INPUT: dict[str, Any] = {
    "params": {"page": 2, "tags": ["a", "b"]},
    "headers": {"X-Count": 3, "X-Name": "007"},
    "form": {"text": "[1]"},
    "messages": [{"role": "user", "content": "007"}],
    "options": {"temperature": 0, "stop": ["x"]},
    "path": 7,
}


@step
async def keep(**given: Any) -> dict[str, Any]:
    return given


@workflow
async def echo(ctx: Any, given: Any) -> Any:
    return given


def node(fields: str) -> str:
    return f"name: whole\nnodes:\n  node: {{{fields}}}\n"


async def test_params_headers_and_a_form_may_each_be_one_template(server: Server) -> None:
    text = node(
        f"kind: http, method: POST, url: '{server.url}/{{{{ input.path }}}}', "
        "params: '{{ input.params }}', headers: '{{ input.headers }}', form: '{{ input.form }}'"
    )
    await run_flow(parse(text), INPUT)
    (request,) = server.requests
    assert request.target == "/7?page=2&tags=a&tags=b"
    assert (request.headers["x-count"], request.headers["x-name"]) == ("3", "007")
    assert request.body == b"text=%5B1%5D"


async def test_a_join_knows_in_templates_and_conditions_which_of_its_inputs_failed() -> None:
    text = """
    name: fan
    nodes:
      good: {kind: code, source: "def main(data): return 1"}
      bad: {kind: code, source: "def main(data): raise PermanentError('no')"}
      join: {kind: branch, when: "has(failures.bad) && !has(failures.good)"}
      told:
        kind: call
        function: keep
        args: {names: "{{ failures | list }}", why: "{{ failures.bad.kind }}"}
    edges:
      - {from: good, to: join, on: all}
      - {from: bad, to: join, on: all}
      - {from: bad, to: told, on: all}
      - {from: join, to: told, port: then, when: size(failures) == 1}
    """
    given = await run_flow(parse(text, functions=[keep]))
    assert given == {"names": ["bad"], "why": "permanent_error"}


async def test_the_whole_address_may_be_a_template_and_is_text(server: Server) -> None:
    text = node("kind: http, url: '{{ input.url }}', headers: {X-Literal: 5}")
    await run_flow(parse(text), {"url": server.url + "/x"})
    assert server.requests[0].target == "/x"
    assert server.requests[0].headers["x-literal"] == "5"


async def test_messages_and_options_of_an_agent_may_each_be_one_template(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    server.replies = [Reply(body={"choices": [{"message": {"content": "fine"}}]})]
    text = node(
        "kind: agent, model: small, messages: '{{ input.messages }}', "
        "options: '{{ input.options }}'"
    )
    assert (await run_flow(parse(text), INPUT))["content"] == "fine"
    assert server.requests[0].json == {
        "model": "small",
        "temperature": 0,
        "stop": ["x"],
        "messages": [{"role": "user", "content": "007"}],
    }


async def test_one_message_of_several_may_be_a_template(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    server.replies = [Reply(body={"choices": [{"message": {"content": "fine"}}]})]
    text = node(
        "kind: agent, model: m, messages: [{role: system, content: s}, '{{ input.messages[0] }}']"
    )
    await run_flow(parse(text), INPUT)
    assert server.requests[0].json["messages"][1] == {"role": "user", "content": "007"}


@pytest.mark.parametrize(
    "fields",
    [
        "kind: call, function: keep, args: '{{ input }}'",
        "kind: code, args: '{{ input }}', source: 'def main(data): return data'",
        "kind: workflow, workflow: echo, input: '{{ input }}'",
    ],
)
async def test_all_arguments_may_be_one_template(fields: str) -> None:
    value = {"number": 1, "text": "007", "list": ["[1]", None, True], "deep": {"a": 1.5}}
    graph = parse(node(fields), functions=[keep], workflows=[echo])
    assert await run_flow(graph, value) == value


@pytest.mark.parametrize("text", ["007", "[1]", "1e5", "None", "true", "{'a': 1}", " 1 "])
async def test_text_stays_text_whatever_it_looks_like(text: str) -> None:
    graph = parse(
        node("kind: call, function: keep, args: {a: '{{ input }}', b: ['{{ input }}']}"),
        functions=[keep],
    )
    assert await run_flow(graph, text) == {"a": text, "b": [text]}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            "kind: http, url: 'http://x', params: '{{ input }}'",
            "nodes.node.params requires a mapping",
        ),
        (
            "kind: http, url: 'http://x', headers: '{{ input }}'",
            "nodes.node.headers requires a map",
        ),
        ("kind: http, url: 'http://x', form: '{{ input }}'", "nodes.node.form requires a mapping"),
        ("kind: http, url: '{{ input }}'", "nodes.node.url requires text, got a list; choose one"),
        (
            "kind: agent, model: m, messages: '{{ input[0] }}'",
            "nodes.node.messages requires a list",
        ),
        (
            "kind: agent, model: m, prompt: '{{ input }}'",
            "nodes.node.prompt requires text, got a list",
        ),
        ("kind: code, args: '{{ input }}', source: main = 1", "nodes.node.args requires a mapping"),
        ("kind: call, function: keep, args: '{{ input }}'", "args requires a mapping, got a list"),
    ],
)
async def test_a_template_that_gives_a_value_of_another_type_fails_the_node_for_good(
    fields: str, reason: str
) -> None:
    with pytest.raises(RunFailed) as caught:
        await run_flow(parse(node(fields), functions=[keep]), [1, 2])
    assert caught.value.failure.kind is FailureKind.PERMANENT_ERROR
    assert reason in caught.value.failure.reason


@pytest.mark.parametrize("field", ["params", "headers", "form"])
def test_text_around_the_template_is_an_error_where_a_mapping_is_required(field: str) -> None:
    found = told(node(f"kind: http, url: 'http://x', {field}: 'a {{{{ input }}}}'"))
    reason = "must be a mapping, got 'a {{ input }}'; write a single template, as in "
    assert found == [
        (
            3,
            f'nodes.node.{field}: {reason}"{{{{ input.value }}}}", with nothing around it if the '
            "value is known only when the node runs",
        )
    ]


async def test_integers_beyond_64_bits_in_an_answer_become_text(server: Server) -> None:
    numbers = [2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**5000, 5]
    body = "[" + ", ".join(map(_digits, numbers)) + "]"
    server.replies = [Reply(body=body.encode(), headers={"content-type": "application/json"})]
    answer = await run_flow(parse(node(f"kind: http, url: '{server.url}'")))
    assert answer["body"] == [
        2**64 - 1,
        str(2**64),
        -(2**63),
        str(-(2**63) - 1),
        "1" + "0" * 5000,
        5,
    ]


async def test_integers_beyond_64_bits_from_code_become_text() -> None:
    text = node("kind: code, source: 'def main(data): return [2**64, 2**63]'")
    assert await run_flow(parse(text)) == [str(2**64), 2**63]


def _digits(number: int) -> str:
    return "1" + "0" * 5000 if number == 10**5000 else json.dumps(number)
