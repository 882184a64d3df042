# ruff: noqa: E501 (whole messages)
"""Mistakes in flows: each is found before the flow runs, with the file, the line and a remedy."""

from pathlib import Path

import pytest

from keyrun import step
from keyrun.flows import InvalidFlow
from keyrun.flows.files import check

FLOW = """\
name: order
nodes:
  reserve:
    kind: http
    method: POST
    url: "http://shop/reserve"
    compensate: release
  charge:
    kind: http
    url: "http://shop/charge/{{ outputs.reserve.body.id }}"
  gate:
    kind: approval
    timeout: 60
  ship:
    kind: call
    function: ship
    args: {id: "{{ outputs.reserve.body.id }}"}
  release:
    kind: http
    url: "http://shop/release"
edges:
  - {from: reserve, to: charge}
  - {from: charge, to: gate}
  - {from: gate, to: ship, on: all}
"""


@step
async def ship(id: str) -> None:  # noqa: A002
    """Does nothing."""


def changed(*changes: tuple[str, str]) -> str:
    """Return the flow with changes."""
    text = FLOW
    for before, after in changes:
        assert before in text
        text = text.replace(before, after, 1)
    return text


MISTAKES = [
    (
        "a tab",
        changed(("    method: POST", "\tmethod: POST")),
        [
            "order.yaml:5: is not YAML: while scanning a plain scalar found a tab character that violates indentation; indent with spaces, not with tabs, and quote text that begins with a sign",
        ],
    ),
    (
        "a kind with a typo",
        changed(("kind: approval", "kind: aproval")),
        [
            "order.yaml:12: nodes.gate.kind: must be one of http, code, agent, call, branch, approval, signal, switch, wait, fail, loop, map, workflow; got 'aproval'; did you mean 'approval'?",
        ],
    ),
    (
        "no kind",
        changed(("    kind: approval\n", "")),
        [
            "order.yaml:11: nodes.gate: requires the field 'kind': one of http, code, agent, call, branch, approval, signal, switch, wait, fail, loop, map, workflow",
        ],
    ),
    (
        "a field with a typo",
        changed(("method: POST", "metod: POST")),
        [
            "order.yaml:5: nodes.reserve.metod: unknown field; did you mean 'method'?",
        ],
    ),
    (
        "a field of another kind",
        changed(("    timeout: 60", "    timeout: 60\n    retry: {max_attempts: 2}")),
        [
            "order.yaml:14: nodes.gate.retry: unknown field; the fields of a node of kind 'approval' are kind, about, timeout, join",
        ],
    ),
    (
        "a word of another tool in a node",
        changed(("    timeout: 60", "    depends_on: [charge]")),
        [
            "order.yaml:13: nodes.gate.depends_on: unknown field; connect nodes under 'edges', as in '{from: a, to: b}'",
        ],
    ),
    (
        "words of another tool in an edge",
        changed(("{from: reserve, to: charge}", "{source: reserve, target: charge}")),
        [
            "order.yaml:22: edges[0]: requires the field 'from': The node that the edge comes from.",
            "order.yaml:22: edges[0]: requires the field 'to': The node that the edge leads to.",
            "order.yaml:22: edges[0].source: unknown field; write 'from'",
            "order.yaml:22: edges[0].target: unknown field; write 'to'",
        ],
    ),
    (
        "a required field is missing",
        changed(('    url: "http://shop/release"\n', "")),
        [
            "order.yaml:18: nodes.release: requires the field 'url': The address, with http:// or https://.",
        ],
    ),
    (
        "a duration with a unit",
        changed(("timeout: 60", "timeout: 10s")),
        [
            "order.yaml:13: nodes.gate.timeout: must be a number of seconds, got '10s'",
        ],
    ),
    (
        "a negative timeout",
        changed(("timeout: 60", "timeout: -1")),
        [
            "order.yaml:13: nodes.gate.timeout: must be greater than 0, got -1",
        ],
    ),
    (
        "no attempts",
        changed(("    method: POST", "    method: POST\n    retry: {max_attempts: 0}")),
        [
            "order.yaml:6: nodes.reserve.retry.max_attempts: must be at least 1, got 0",
        ],
    ),
    (
        "a field of another retry shape",
        changed(("    method: POST", "    method: POST\n    retry: {shape: fixed, factor: 2}")),
        [
            "order.yaml:6: nodes.reserve.retry.factor: unknown field; the fields of a retry policy with the shape 'fixed' are shape, max_attempts, delay, jitter",
        ],
    ),
    (
        "a method with a typo",
        changed(("method: POST", "method: POTS")),
        [
            "order.yaml:5: nodes.reserve.method: must be one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS; got 'POTS'; did you mean 'POST'?",
        ],
    ),
    (
        "a name that is a number",
        changed(("name: order", "name: 7")),
        [
            "order.yaml:1: name: must be text, got 7",
        ],
    ),
    (
        "a limit of zero",
        changed(("name: order", "name: order\nmax_concurrency: 0")),
        [
            "order.yaml:2: max_concurrency: must be at least 1, got 0",
        ],
    ),
    (
        "an option of the flow with a typo",
        changed(("name: order", "name: order\nfailfast: true")),
        [
            "order.yaml:2: failfast: unknown field; did you mean 'fail_fast'?",
        ],
    ),
    (
        "nodes as a list",
        ('name: order\nnodes:\n  - {id: a, kind: http, url: "http://x"}\n'),
        [
            "order.yaml:2: nodes: must be a mapping from names to nodes, got a list",
        ],
    ),
    (
        "no nodes",
        ("name: order\nnodes: {}\n"),
        [
            "order.yaml:2: nodes: must not be empty; add a node, as in 'fetch: {kind: http, ...}'",
        ],
    ),
    (
        "an empty file",
        (""),
        [
            "order.yaml: is empty; a flow requires 'name' and 'nodes'",
        ],
    ),
    (
        "another format",
        ("name: build\non: push\njobs:\n  build: {steps: [{run: make}]}\n"),
        [
            "order.yaml:1: requires the field 'nodes': The nodes by name.",
            "order.yaml:2: on: unknown field; the fields of a flow are name, version, about, nodes, edges, fail_fast, max_concurrency, schedule, compensation, compensate_on, while_waiting, instances, when_full, checkpoint, resources, retry, limits, max_output, max_run_output",
            "order.yaml:3: jobs: unknown field; the fields of a flow are name, version, about, nodes, edges, fail_fast, max_concurrency, schedule, compensation, compensate_on, while_waiting, instances, when_full, checkpoint, resources, retry, limits, max_output, max_run_output",
        ],
    ),
    (
        "two documents",
        (FLOW + "---\nname: more\n"),
        [
            "order.yaml:25: has a second document; keep one flow in a file",
        ],
    ),
    (
        "an unquoted template",
        changed(('url: "http://shop/release"', "url: {{ input.url }}")),
        [
            'order.yaml:20: has a name that is not text; put quotes around a template, as in "{{ input.name }}"',
        ],
    ),
    (
        "a colon in plain text",
        changed(('"http://shop/release"', "see: this")),
        [
            "order.yaml:20: is not YAML: mapping values are not allowed in this context; quote text that contains a colon and a space",
        ],
    ),
    (
        "a tag",
        changed(('"http://shop/release"', '!!python/name:os.system ""')),
        [
            "order.yaml:20: the tag 'tag:yaml.org,2002:python/name:os.system' is not allowed; a flow has no tags",
            "order.yaml:20: nodes.release.url: must not be empty",
        ],
    ),
    (
        "a name twice",
        changed(("edges:", '  charge: {kind: http, url: "http://x"}\nedges:')),
        [
            "order.yaml:21: the name 'charge' is used twice, first in line 8",
        ],
    ),
    (
        "an edge to a node with a typo",
        changed(("to: gate", "to: gatte")),
        [
            "order.yaml:23: edges[1].to: there is no node 'gatte'; did you mean 'gate'?",
        ],
    ),
    (
        "an edge from a node that is not there",
        changed(("from: charge", "from: payment")),
        [
            "order.yaml:23: edges[1].from: there is no node 'payment'; the nodes are reserve, charge, gate, ship, release",
        ],
    ),
    (
        "a port with a typo",
        changed(("to: ship, on: all", "to: ship, port: aproved")),
        [
            "order.yaml:24: edges[2].port: 'gate' has no port 'aproved'; its ports are 'approved', 'rejected', 'timeout'; did you mean 'approved'?",
        ],
    ),
    (
        "a port of a node without ports",
        changed(("{from: charge, to: gate}", "{from: charge, to: gate, port: ok}")),
        [
            "order.yaml:23: edges[1].port: 'charge' has no port 'ok'; it has no ports",
        ],
    ),
    (
        "a word for on with a typo",
        changed(("on: all", "on: failure")),
        [
            "order.yaml:24: edges[2].on: must be one of complete, fail, all; got 'failure'; did you mean 'fail'?",
        ],
    ),
    (
        "a port on a fail edge",
        changed(("to: ship, on: all", "to: ship, on: fail, port: rejected")),
        [
            "order.yaml:24: edges[2].port: a node that fails leaves by no port; remove the port",
        ],
    ),
    (
        "max_iterations without back",
        changed(("to: ship, on: all", "to: ship, on: all, max_iterations: 3")),
        [
            "order.yaml:24: edges[2].max_iterations: max_iterations is for back edges; add 'back: true', or remove it",
        ],
    ),
    (
        "a cycle",
        changed(("to: ship, on: all}", "to: ship, on: all}\n  - {from: ship, to: charge}")),
        [
            "order.yaml:25: edges[3].to: 'charge' -> 'gate' -> 'ship' -> 'charge' is a cycle; add 'back: true' to the edge that begins the next turn",
        ],
    ),
    (
        "a back edge that leads forward",
        changed(("to: charge}", "to: charge}\n  - {from: reserve, to: gate, back: true}")),
        [
            "order.yaml:23: edges[1].back: a back edge leads to an earlier node, but no path leads from 'gate' to 'reserve'",
        ],
    ),
    (
        "the same edge twice",
        changed(("to: charge}", "to: charge}\n  - {from: reserve, to: charge}")),
        [
            "order.yaml:23: edges[1]: this edge is declared 2 times; keep one",
        ],
    ),
    (
        "a compensation with a typo",
        changed(("compensate: release", "compensate: relase")),
        [
            "order.yaml:7: nodes.reserve.compensate: there is no node 'relase'; did you mean 'release'?",
        ],
    ),
    (
        "a fallback without a breaker",
        changed(("    method: POST", "    method: POST\n    fallback: release")),
        [
            "order.yaml:6: nodes.reserve.fallback: a fallback requires a circuit breaker; add 'breaker' to this node",
        ],
    ),
    (
        "a breaker that can never open",
        changed(
            (
                "    method: POST",
                "    method: POST\n    breaker: {minimum_calls: 9, window_calls: 3}",
            )
        ),
        [
            "order.yaml:6: nodes.reserve.breaker: minimum_calls must be at most window_calls, which is 3, got 9",
        ],
    ),
    (
        "more resources than there are",
        changed(
            ("name: order", "name: order\nresources: {cpu: 1}"),
            ("    method: POST", "    method: POST\n    resources: {cpu: 4}"),
        ),
        [
            "order.yaml:7: nodes.reserve.resources: needs cpu=4, but the quota is 1",
        ],
    ),
    (
        "two checkpoint policies",
        changed(("name: order", "name: order\ncheckpoint: {steps: 1, seconds: 2}")),
        [
            "order.yaml:2: checkpoint: requires either 'steps' or 'seconds'",
        ],
    ),
    (
        "an unclosed template",
        changed(('body.id }}"\n  gate', 'body.id }"\n  gate')),
        [
            "order.yaml:10: nodes.charge.url: the template cannot be parsed: unexpected '}'; an expression ends with '}}'",
        ],
    ),
    (
        "a filter with a typo",
        changed(('body.id }}"\n  gate', 'body.id | urlencod }}"\n  gate')),
        [
            "order.yaml:10: nodes.charge.url: there is no filter 'urlencod'; did you mean 'urlencode'?",
        ],
    ),
    (
        "a filter that is not there",
        changed(('body.id }}"\n  gate', 'body.id | shuffle }}"\n  gate')),
        [
            "order.yaml:10: nodes.charge.url: there is no filter 'shuffle'; the filters are abs, batch, capitalize, count, d, default, dictsort, first, float, format, groupby, int, items, join, last, length, list, lower, map, max, min, reject, rejectattr, replace, reverse, round, select, selectattr, slice, sort, string, sum, title, tojson, trim, truncate, unique, upper, urlencode, wordcount",
        ],
    ),
    (
        "a name with a typo in a template",
        changed(('outputs.reserve.body.id }}"\n  gate', 'inptu.id }}"\n  gate')),
        [
            "order.yaml:10: nodes.charge.url: there is no name 'inptu'; did you mean 'input'?",
        ],
    ),
    (
        "a name of another tool in a template",
        changed(('outputs.reserve.body.id }}"\n  gate', 'steps.reserve.id }}"\n  gate')),
        [
            "order.yaml:10: nodes.charge.url: there is no name 'steps'; did you mean 'outputs'?",
        ],
    ),
    (
        "a function of Python in a template",
        changed(('outputs.reserve.body.id }}"\n  gate', 'len(output.body) }}"\n  gate')),
        [
            "order.yaml:10: nodes.charge.url: there is no function 'len'; use the filter, as in value | length",
        ],
    ),
    (
        "a node with a typo in a template",
        changed(('outputs.reserve.body.id }}"\n  gate', 'outputs.reserv.body.id }}"\n  gate')),
        [
            "order.yaml:10: nodes.charge.url: outputs.reserv: there is no node 'reserv'; did you mean 'reserve'?",
        ],
    ),
    (
        "a field of an output with a typo",
        changed(('outputs.reserve.body.id }}"\n  gate', 'outputs.reserve.boddy.id }}"\n  gate')),
        [
            "order.yaml:10: nodes.charge.url: outputs.reserve has no field 'boddy'; did you mean 'body'?",
        ],
    ),
    (
        "a field of output with a typo",
        changed(('outputs.reserve.body.id }}"\n  gate', 'output.stauts }}"\n  gate')),
        [
            "order.yaml:10: nodes.charge.url: output has no field 'stauts'; did you mean 'status'?",
        ],
    ),
    (
        "the output of a later node",
        changed(('outputs.reserve.body.id }}"\n  gate', 'outputs.ship.id }}"\n  gate')),
        [
            "order.yaml:10: nodes.charge.url: outputs.ship: 'ship' has not completed at this point, because it comes after 'charge'; use the filter default for a value that may be missing",
        ],
    ),
    (
        "a field of run with a typo",
        changed(('outputs.reserve.body.id }}"\n  gate', 'run.ids }}"\n  gate')),
        [
            "order.yaml:10: nodes.charge.url: run has no field 'ids'; did you mean 'id'?",
        ],
    ),
    (
        "a name that compensations do not have",
        changed(('"http://shop/release"', '"http://shop/{{ outputs.reserve.body.id }}"')),
        [
            "order.yaml:20: nodes.release.url: 'outputs' is not available in a node that compensates another; its templates can use input, output, error, run, env, why, failed, undoes, left",
        ],
    ),
    (
        "a variable that is not listed",
        changed(('"http://shop/release"', '"http://shop/{{ env.TOKEN }}"')),
        [
            "order.yaml:20: nodes.release.url: env.TOKEN is not listed; add it to the node: 'env: [TOKEN]'",
        ],
    ),
    (
        "a variable in a kind without env",
        changed(('args: {id: "{{ outputs.reserve.body.id }}"}', 'args: {id: "{{ env.TOKEN }}"}')),
        [
            "order.yaml:17: nodes.ship.args.id: env.TOKEN is not available in a node of this kind; only the kinds http and code can list environment variables",
        ],
    ),
    (
        "an address without a scheme",
        changed(('"http://shop/release"', '"shop/release"')),
        [
            "order.yaml:20: nodes.release.url: the address 'shop/release' has no scheme; write 'http://shop/release' or https://",
        ],
    ),
    (
        "an address with another scheme",
        changed(('"http://shop/release"', '"ftp://shop/release"')),
        [
            "order.yaml:20: nodes.release.url: the scheme 'ftp' is not supported; use http:// or https://",
        ],
    ),
    (
        "an address without a host",
        changed(('"http://shop/release"', '"http:///release"')),
        [
            "order.yaml:20: nodes.release.url: the address 'http:///release' has no host",
        ],
    ),
    (
        "a mapping with text around its template",
        changed(("method: POST", 'params: "all {{ input.params }}"')),
        [
            "order.yaml:5: nodes.reserve.params: must be a mapping, got 'all {{ input.params }}'; write a single template, as in \"{{ input.value }}\", with nothing around it if the value is known only when the node runs",
        ],
    ),
    (
        "two bodies",
        changed(("method: POST", "method: POST\n    json: {a: 1}\n    body: text")),
        [
            "order.yaml:7: nodes.reserve.body: a request has one body, got json and body; keep one of them",
        ],
    ),
    (
        "a condition with the words of Python",
        changed(
            (
                "{from: charge, to: gate}",
                "{from: charge, to: gate, when: 'output.status == 200 and true'}",
            )
        ),
        [
            "order.yaml:23: edges[1].when: in 'output.status == 200 and true', column 22: write '&&' instead of 'and'",
        ],
    ),
    (
        "a condition with an unknown function",
        changed(
            ("{from: charge, to: gate}", "{from: charge, to: gate, when: 'len(output.body) > 1'}")
        ),
        [
            "order.yaml:23: edges[1].when: in 'len(output.body) > 1', column 1: there is no function 'len'; did you mean 'size'?",
        ],
    ),
    (
        "a condition with an unknown method",
        changed(
            (
                "{from: charge, to: gate}",
                "{from: charge, to: gate, when: 'output.body.startswith(\"a\")'}",
            )
        ),
        [
            "order.yaml:23: edges[1].when: in 'output.body.startswith(\"a\")', column 13: there is no method 'startswith'; did you mean 'startsWith'?",
        ],
    ),
    (
        "a condition with one equals sign",
        changed(
            ("{from: charge, to: gate}", "{from: charge, to: gate, when: 'output.status = 200'}")
        ),
        [
            "order.yaml:23: edges[1].when: in 'output.status = 200', column 15: write '==' instead of '='",
        ],
    ),
    (
        "a condition that is a template",
        changed(
            (
                "{from: charge, to: gate}",
                "{from: charge, to: gate, when: '{{ output.status }} == 200'}",
            )
        ),
        [
            "order.yaml:23: edges[1].when: in '{{ output.status }} == 200', column 1: a condition is not a template; write the expression without '{{' and '}}'",
        ],
    ),
    (
        "a condition with an open string",
        changed(
            ("{from: charge, to: gate}", "{from: charge, to: gate, when: 'output.body == \"a'}")
        ),
        [
            "order.yaml:23: edges[1].when: in 'output.body == \"a', column 16: the string is not closed; add \" at its end",
        ],
    ),
    (
        "a condition that breaks off",
        changed(("{from: charge, to: gate}", "{from: charge, to: gate, when: 'output.status =='}")),
        [
            "order.yaml:23: edges[1].when: in 'output.status ==', column 17: expected a value, found the end",
        ],
    ),
    (
        "an invalid regular expression",
        changed(
            (
                "{from: charge, to: gate}",
                "{from: charge, to: gate, when: 'output.body.matches(\"(((\")'}",
            )
        ),
        [
            "order.yaml:23: edges[1].when: in 'output.body.matches(\"(((\")', column 13: the pattern '(((' has an unclosed '('",
        ],
    ),
    (
        "a node with a typo in a condition",
        changed(
            (
                "{from: charge, to: gate}",
                "{from: charge, to: gate, when: 'outputs.chrge.status == 200'}",
            )
        ),
        [
            "order.yaml:23: edges[1].when: outputs.chrge: there is no node 'chrge'; did you mean 'charge'?",
        ],
    ),
    (
        "a field of output with a typo in a condition",
        changed(
            ("{from: charge, to: gate}", "{from: charge, to: gate, when: 'output.code == 200'}")
        ),
        [
            "order.yaml:23: edges[1].when: output has no field 'code'; it has status, headers, body",
        ],
    ),
    (
        "a name with a typo in a condition",
        changed(
            ("{from: charge, to: gate}", "{from: charge, to: gate, when: 'outptu.status == 200'}")
        ),
        [
            "order.yaml:23: edges[1].when: in 'outptu.status == 200', column 1: there is no name 'outptu'; did you mean 'output'?",
        ],
    ),
    (
        "a condition over two lines",
        changed(
            (
                "{from: charge, to: gate}",
                "{from: charge, to: gate}\n  - from: reserve\n    to: gate\n    when: |\n      output.status == 200\n        or true",
            )
        ),
        [
            "order.yaml:28: edges[2].when: in 'output.status == 200\\n  or true\\n', column 3: write '||' instead of 'or'",
        ],
    ),
    (
        "a function that is not registered",
        changed(("function: ship", "function: shpi")),
        [
            "order.yaml:16: nodes.ship.function: there is no function 'shpi'; did you mean 'ship'? (see --with MODULE)",
        ],
    ),
    (
        "arguments that the function does not take",
        changed(('args: {id: "{{ outputs.reserve.body.id }}"}', "args: {order: 1}")),
        [
            "order.yaml:17: nodes.ship.args: its function is called with the arguments in args, but takes (id: str) -> None: missing a required argument: 'id'",
        ],
    ),
    (
        "a workflow that is not known",
        changed(
            ("    kind: approval\n    timeout: 60", "    kind: workflow\n    workflow: parcel")
        ),
        [
            "order.yaml:13: nodes.gate.workflow: there is no workflow 'parcel'; no workflows were given (see --with MODULE or --with FILE)",
        ],
    ),
    (
        "code without main",
        changed(
            (
                "    kind: approval\n    timeout: 60",
                "    kind: code\n    source: |\n      def man(data):\n          return 1",
            )
        ),
        [
            "order.yaml:14: nodes.gate.source: the code defines no function 'main'; write def main(data): ...",
        ],
    ),
    (
        "code with a syntax error",
        changed(
            (
                "    kind: approval\n    timeout: 60",
                "    kind: code\n    source: |\n      def main(data):\n          return (1",
            )
        ),
        [
            "order.yaml:15: nodes.gate.source: the code is not Python: '(' was never closed",
        ],
    ),
    (
        "code that is nowhere",
        changed(("    kind: approval\n    timeout: 60", "    kind: code\n    timeout: 60")),
        [
            "order.yaml:11: nodes.gate: requires the field 'source' with the code, or 'file' with its path",
        ],
    ),
    (
        "an agent without a prompt",
        changed(("    kind: approval\n    timeout: 60", "    kind: agent\n    model: small")),
        [
            "order.yaml:11: nodes.gate: requires the field 'prompt' or the field 'messages'",
        ],
    ),
    (
        "an agent with a prompt and messages",
        changed(
            (
                "    kind: approval\n    timeout: 60",
                "    kind: agent\n    model: small\n    prompt: hello\n    messages: []",
            )
        ),
        [
            "order.yaml:15: nodes.gate.messages: a node has 'prompt' or 'messages', got both; remove one",
        ],
    ),
    (
        "a branch without a condition",
        changed(("    kind: approval\n    timeout: 60", "    kind: branch")),
        [
            "order.yaml:11: nodes.gate: requires the field 'when': The condition, in CEL.",
        ],
    ),
    (
        "an edge into a loop",
        changed(
            (
                "    kind: approval\n    timeout: 60",
                '    kind: loop\n    while: output.next != null\n    body:\n      nodes:\n        page: {kind: http, url: "http://x"}',
            ),
            ("to: ship, on: all", "to: page"),
        ),
        [
            "order.yaml:27: edges[2].to: the node 'page' is in another body; connect 'gate', which contains it",
        ],
    ),
    (
        "an edge out of a loop",
        changed(
            (
                "    kind: approval\n    timeout: 60",
                '    kind: loop\n    while: output.next != null\n    body:\n      nodes:\n        page: {kind: http, url: "http://x"}\n      edges:\n        - {from: page, to: ship}',
            )
        ),
        [
            "order.yaml:18: nodes.gate.body.edges[0].to: the node 'ship' is in another body; connect nodes of this body, or add the edge to 'gate', outside of the body",
        ],
    ),
    (
        "a loop whose condition reads its body",
        changed(
            (
                "    kind: approval\n    timeout: 60",
                '    kind: loop\n    while: outputs.page.status == 200\n    body:\n      nodes:\n        page: {kind: http, url: "http://x"}',
            )
        ),
        [
            "order.yaml:13: nodes.gate.while: outputs.page: 'page' has not completed at this point, because it comes after 'gate'; guard it with has(outputs.page)",
        ],
    ),
    (
        "the failure of a node that is not right before",
        changed(('{id: "{{ outputs.reserve.body.id }}"}', '{id: "{{ failures.charge.reason }}"}')),
        [
            "order.yaml:17: nodes.ship.args.id: failures.charge: no edge leads from 'charge' to 'ship'; only the nodes right before it have their failures there",
        ],
    ),
    (
        "the failure of a node that does not exist",
        changed(('{id: "{{ outputs.reserve.body.id }}"}', '{id: "{{ failures.gates.reason }}"}')),
        [
            "order.yaml:17: nodes.ship.args.id: failures.gates: there is no node 'gates'; did you mean 'gate'?",
        ],
    ),
    *(
        (
            f"a map with {mistake}",
            changed(
                (
                    "    kind: approval\n    timeout: 60",
                    "    kind: map\n    items: '{{ input.list }}'\n    body:\n      nodes:\n"
                    "        page: {kind: http, url: 'http://x/{{ item }}'}\n"
                    "        check: {kind: branch, when: index > 0}\n"
                    "      edges:\n        - {from: page, to: check}",
                ),
                *changes,
            ),
            [message],
        )
        for mistake, changes, message in [
            (
                "items that are text",
                [("items: '{{ input.list }}'", "items: input.list")],
                """order.yaml:13: nodes.gate.items: must be a list, got 'input.list'; write a single template, as in "{{ input.value }}", with nothing around it if the value is known only when the node runs""",
            ),
            (
                "no items",
                [("    items: '{{ input.list }}'\n", "")],
                "order.yaml:11: nodes.gate: requires the field 'items': The list, or a template.",
            ),
            (
                "no room for an item",
                [("    items:", "    max_concurrency: 0\n    items:")],
                "order.yaml:13: nodes.gate.max_concurrency: must be at least 1, got 0",
            ),
            (
                "an output of its body outside",
                [('{{ outputs.reserve.body.id }}"}', '{{ outputs.page.body }}"}')],
                "order.yaml:23: nodes.ship.args.id: outputs.page: 'page' runs for each item of 'gate'; use outputs.gate.results",
            ),
            (
                "a field that its output does not have",
                [('{{ outputs.reserve.body.id }}"}', '{{ outputs.gate.result }}"}')],
                "order.yaml:23: nodes.ship.args.id: outputs.gate has no field 'result'; did you mean 'results'?",
            ),
            (
                "its own output in its body",
                [("http://x/{{ item }}", "http://x/{{ outputs.gate.results }}")],
                "order.yaml:16: nodes.gate.body.nodes.page.url: outputs.gate: 'gate' has not completed at this point, because it comes after 'page'; use the filter default for a value that may be missing",
            ),
            (
                "its item in another node",
                [('{{ outputs.reserve.body.id }}"}', '{{ item.id }}"}')],
                "order.yaml:23: nodes.ship.args.id: 'item' is only known in the body of a map",
            ),
            (
                "its index in a condition outside",
                [("{from: charge, to: gate}", "{from: charge, to: gate, when: index > 0}")],
                "order.yaml:29: edges[1].when: 'index' is only known in the body of a map",
            ),
            (
                "an edge into its body",
                [("to: ship, on: all", "to: page")],
                "order.yaml:30: edges[2].to: the node 'page' is in another body; connect 'gate', which contains it",
            ),
            (
                "a limit that does not work in a body",
                [("{{ item }}'}", "{{ item }}', max_waiting: 3}")],
                "order.yaml:16: nodes.gate.body.nodes.page.max_waiting: max_waiting is not supported in the body of a map; limit what waits with the max_concurrency of 'gate'",
            ),
        ]
    ),
    (
        "a template on its third line",
        changed(
            (
                "    kind: approval\n    timeout: 60",
                "    kind: agent\n    model: small\n    prompt: |\n      Dear customer,\n      your order\n      {{ input.number }\n      is ready.",
            )
        ),
        [
            "order.yaml:17: nodes.gate.prompt: the template cannot be parsed: unexpected '}'; an expression ends with '}}'",
        ],
    ),
]


def gate(body: str, *, edge: str = "  - {from: gate, to: ship, on: all}\n") -> str:
    """Return the flow with another node `gate`, and the edge that leads out of it."""
    fields = "".join(f"    {line}\n" for line in body.splitlines())
    return changed(
        ("    kind: approval\n    timeout: 60\n", fields),
        ("  - {from: gate, to: ship, on: all}\n", edge),
    )


MISTAKES += [
    (
        "a method that templates do not have",
        changed(
            ('outputs.reserve.body.id }}"\n  gate', 'outputs.reserve.body.id.uper() }}"\n  gate')
        ),
        [
            "order.yaml:10: nodes.charge.url: templates have no method 'uper'; did you mean 'upper'?",
        ],
    ),
    (
        "an address without a host",
        changed(('"http://shop/release"', "/release")),
        [
            "order.yaml:20: nodes.release.url: the address '/release' has no host; write it whole, as in 'https://shop.example/x'",
        ],
    ),
    (
        "edges as a mapping",
        FLOW[: FLOW.index("edges:")] + "edges: {reserve: charge}\n",
        [
            "order.yaml:21: edges: must be a list, got a mapping; write '- {from: a, to: b}' for each item",
        ],
    ),
    (
        "a wait without a length",
        gate("kind: wait"),
        [
            "order.yaml:11: nodes.gate: requires the field 'seconds' with the length of the wait, or 'until' with its end",
        ],
    ),
    (
        "a wait with two lengths",
        gate("kind: wait\nseconds: 5\nuntil: 2026-12-24T18:00:00Z"),
        [
            "order.yaml:14: nodes.gate.until: a node has 'seconds' or 'until', got both; remove one",
        ],
    ),
    (
        "a wait with a unit",
        gate("kind: wait\nseconds: 10m"),
        [
            "order.yaml:13: nodes.gate.seconds: must be a number of seconds, got '10m'; write a single template, as in \"{{ input.value }}\", with nothing around it if the value is known only when the node runs",
        ],
    ),
    (
        "a wait of less than nothing",
        gate("kind: wait\nseconds: -1"),
        [
            "order.yaml:13: nodes.gate.seconds: must be at least 0, got -1",
        ],
    ),
    (
        "a wait that is too long",
        gate("kind: wait\nseconds: 1e99"),
        [
            "order.yaml:13: nodes.gate.seconds: must be at most 10,000,000,000, got 1e+99",
        ],
    ),
    (
        "a template beside digits in the length of a wait",
        gate('kind: wait\nseconds: "{{ input.minutes }}0"'),
        [
            "order.yaml:13: nodes.gate.seconds: must be a number of seconds, got '{{ input.minutes }}0'; write a single template, as in \"{{ input.value }}\", with nothing around it if the value is known only when the node runs",
        ],
    ),
    (
        "a typo in the length of a wait",
        gate('kind: wait\nseconds: "{{ outptu.status }}"'),
        [
            "order.yaml:13: nodes.gate.seconds: there is no name 'outptu'; did you mean 'output'?",
        ],
    ),
    (
        "a wait until a day",
        gate("kind: wait\nuntil: 2026-12-24"),
        [
            "order.yaml:13: nodes.gate.until: '2026-12-24' is not a time; write the date, time and zone, as in '2026-12-24T18:00:00Z'",
        ],
    ),
    (
        "a time without a zone",
        gate("kind: wait\nuntil: 2026-12-24T18:00:00"),
        [
            "order.yaml:13: nodes.gate.until: the time '2026-12-24T18:00:00' has no time zone; write '2026-12-24T18:00:00Z' for UTC, or add an offset such as +01:00",
        ],
    ),
    (
        "a time with the name of a zone",
        gate("kind: wait\nuntil: 2026-12-24T18:00:00 Europe/Berlin"),
        [
            "order.yaml:13: nodes.gate.until: '2026-12-24T18:00:00 Europe/Berlin' is not a time; write the date, time and zone, as in '2026-12-24T18:00:00Z'",
        ],
    ),
    (
        "a time that is in no calendar",
        gate("kind: wait\nuntil: 2026-02-30T18:00:00Z"),
        [
            "order.yaml:13: nodes.gate.until: '2026-02-30T18:00:00Z' is not a time: day is out of range for month",
        ],
    ),
    (
        "a time as a number",
        gate("kind: wait\nuntil: 1800000000"),
        [
            "order.yaml:13: nodes.gate.until: must be a time as text, got 1800000000",
        ],
    ),
    (
        "a word of another tool in a wait",
        gate("kind: wait\nduration: 60"),
        [
            "order.yaml:11: nodes.gate: requires the field 'seconds' with the length of the wait, or 'until' with its end",
            "order.yaml:13: nodes.gate.duration: unknown field; write 'seconds'",
        ],
    ),
    (
        "a kind of another tool",
        gate("kind: sleep\nseconds: 60"),
        [
            "order.yaml:12: nodes.gate.kind: must be one of http, code, agent, call, branch, approval, signal, switch, wait, fail, loop, map, workflow; got 'sleep'; write 'wait'",
        ],
    ),
    (
        "a map by the name that it has elsewhere",
        gate("kind: foreach\nitems: [1]"),
        [
            "order.yaml:12: nodes.gate.kind: must be one of http, code, agent, call, branch, approval, signal, switch, wait, fail, loop, map, workflow; got 'foreach'; write 'map'",
        ],
    ),
    (
        "a signal without a name",
        gate("kind: signal"),
        [
            "order.yaml:11: nodes.gate: requires the field 'name': The name of the signal.",
        ],
    ),
    (
        "a signal with a word of another tool",
        gate("kind: signal\nevent: paid"),
        [
            "order.yaml:11: nodes.gate: requires the field 'name': The name of the signal.",
            "order.yaml:13: nodes.gate.event: unknown field; write 'name'",
        ],
    ),
    (
        "a template in the name of a signal",
        gate('kind: signal\nname: "paid-{{ input.id }}"'),
        [
            "order.yaml:13: nodes.gate.name: the name of a signal cannot contain a template; write the name",
        ],
    ),
    (
        "a reserved name of a signal",
        gate("kind: signal\nname: keyrun.paid"),
        [
            "order.yaml:13: nodes.gate.name: must not start with 'keyrun.', which is reserved, got 'keyrun.paid'",
        ],
    ),
    (
        "a port of a signal with a typo",
        gate("kind: signal\nname: paid", edge="  - {from: gate, to: ship, port: recieved}\n"),
        [
            "order.yaml:24: edges[2].port: 'gate' has no port 'recieved'; its ports are 'received', 'timeout'; did you mean 'received'?",
        ],
    ),
    (
        "a field of the payload without payload",
        gate(
            "kind: signal\nname: paid", edge="  - {from: gate, to: ship, when: output.amount > 5}\n"
        ),
        [
            "order.yaml:24: edges[2].when: output has no field 'amount'; it has payload, output",
        ],
    ),
    (
        "a switch without cases",
        gate("kind: switch"),
        [
            "order.yaml:11: nodes.gate: requires the field 'cases': The ports with their conditions, in order.",
        ],
    ),
    (
        "a switch with an empty list",
        gate("kind: switch\ncases: []"),
        [
            "order.yaml:13: nodes.gate.cases: must not be empty",
        ],
    ),
    (
        "a switch with a mapping",
        gate("kind: switch\ncases: {large: output.status > 1}"),
        [
            "order.yaml:13: nodes.gate.cases: must be a list, got a mapping; write '- {port: large, when: output.total > 100}' for each item",
        ],
    ),
    (
        "a switch with the condition of a branch",
        gate("kind: switch\nwhen: output.status > 1"),
        [
            "order.yaml:11: nodes.gate: requires the field 'cases': The ports with their conditions, in order.",
            "order.yaml:13: nodes.gate.when: unknown field; write 'cases'",
        ],
    ),
    (
        "a case without a port",
        gate("kind: switch\ncases:\n  - when: output.status > 1"),
        [
            "order.yaml:14: nodes.gate.cases[0]: requires the field 'port': The port.",
        ],
    ),
    (
        "a case without a condition",
        gate("kind: switch\ncases:\n  - port: large"),
        [
            "order.yaml:14: nodes.gate.cases[0]: requires the field 'when': The condition, in CEL.",
        ],
    ),
    (
        "a case with words of another tool",
        gate("kind: switch\ncases:\n  - port: large\n    if: output.status > 1\n    then: ship"),
        [
            "order.yaml:14: nodes.gate.cases[0]: requires the field 'when': The condition, in CEL.",
            "order.yaml:15: nodes.gate.cases[0].if: unknown field; write 'when'",
            "order.yaml:16: nodes.gate.cases[0].then: unknown field; connect nodes under 'edges', as in '{from: a, to: b}'",
        ],
    ),
    (
        "two cases with the same port",
        gate(
            "kind: switch\ncases:\n  - {port: large, when: output.status > 1}\n  - {port: large, when: output.status > 2}"
        ),
        [
            "order.yaml:15: nodes.gate.cases[1].port: the port 'large' has two cases; join their conditions with ||",
        ],
    ),
    (
        "a case with the port default",
        gate("kind: switch\ncases:\n  - {port: default, when: output.status > 1}"),
        [
            "order.yaml:14: nodes.gate.cases[0].port: the port 'default' is taken if no condition is true; choose another name",
        ],
    ),
    (
        "a case with and",
        gate(
            "kind: switch\ncases:\n  - {port: large, when: output.status > 1}\n  - port: small\n    when: output.status > 0 and true"
        ),
        [
            "order.yaml:16: nodes.gate.cases[1].when: in 'output.status > 0 and true', column 19: write '&&' instead of 'and'",
        ],
    ),
    (
        "a case with a typo in a node",
        gate("kind: switch\ncases:\n  - {port: large, when: outputs.chrge.status > 1}"),
        [
            "order.yaml:14: nodes.gate.cases[0].when: outputs.chrge: there is no node 'chrge'; did you mean 'charge'?",
        ],
    ),
    (
        "a case with a field that is not there",
        gate("kind: switch\ncases:\n  - {port: large, when: output.total > 1}"),
        [
            "order.yaml:14: nodes.gate.cases[0].when: output has no field 'total'; it has status, headers, body",
        ],
    ),
    (
        "a port that is no case",
        gate(
            "kind: switch\ncases:\n  - {port: large, when: output.status > 1}",
            edge="  - {from: gate, to: ship, port: larg}\n",
        ),
        [
            "order.yaml:25: edges[2].port: 'gate' has no port 'larg'; its ports are 'large', 'default'; did you mean 'large'?",
        ],
    ),
    (
        "a default of another tool in a switch",
        gate("kind: switch\ncases:\n  - {port: large, when: output.status > 1}\ndefault: ship"),
        [
            "order.yaml:15: nodes.gate.default: unknown field; add an edge with 'port: default'",
        ],
    ),
    (
        "a fail without a reason",
        gate("kind: fail", edge=""),
        [
            "order.yaml:11: nodes.gate: requires the field 'reason': The reason, for people.",
        ],
    ),
    (
        "a fail with a word of another tool",
        gate("kind: fail\nmessage: no money", edge=""),
        [
            "order.yaml:11: nodes.gate: requires the field 'reason': The reason, for people.",
            "order.yaml:13: nodes.gate.message: unknown field; write 'reason'",
        ],
    ),
    (
        "a typo in the reason of a fail",
        gate('kind: fail\nreason: "charge: {{ error.resaon }}"', edge=""),
        [
            "order.yaml:13: nodes.gate.reason: error has no field 'resaon'; did you mean 'reason'?",
        ],
    ),
    (
        "an edge out of a fail",
        gate("kind: fail\nreason: no money"),
        [
            "order.yaml:24: edges[2].from: the run ends at 'gate', so no edge leads out of it; remove the edge",
        ],
    ),
    (
        "a fail that is retried",
        gate("kind: fail\nreason: no money\nretry: none", edge=""),
        [
            "order.yaml:14: nodes.gate.retry: unknown field; the fields of a node of kind 'fail' are kind, about, reason, join",
        ],
    ),
]


def told(text: str, tmp_path: Path) -> list[str]:
    """Return the lines that `keyrun flow check` prints for a flow."""
    path = tmp_path / "order.yaml"
    path.write_text(text)
    with pytest.raises(InvalidFlow) as caught:
        check(path, functions=[ship])
    return [line.removeprefix(f"{tmp_path}/") for line in caught.value.lines()]


def test_the_flow_without_a_mistake_is_valid(tmp_path: Path) -> None:
    (tmp_path / "order.yaml").write_text(FLOW)
    assert check(tmp_path / "order.yaml", functions=[ship]).warnings == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [pytest.param(text, expected, id=name) for name, text, expected in MISTAKES],
)
def test_a_mistake_is_reported_with_file_line_and_remedy(
    text: str, expected: list[str], tmp_path: Path
) -> None:
    assert told(text, tmp_path) == expected


@pytest.mark.parametrize("words", ["back=True", "mismatched", "NodeInput", "graph.", "Traceback"])
def test_no_message_speaks_of_python_or_of_a_parser_generator(words: str) -> None:
    assert not any(words in line for _, _, expected in MISTAKES for line in expected)


def test_there_are_many_mistakes_and_all_are_different() -> None:
    assert len({text for _, text, _ in MISTAKES}) == len(MISTAKES) >= 40


def warned(text: str, tmp_path: Path) -> list[tuple[int | None, str]]:
    path = tmp_path / "order.yaml"
    path.write_text(text)
    return [(each.line, each.message) for each in check(path, functions=[ship]).warnings]


def test_an_edge_that_takes_a_timeout_that_is_not_set_is_a_warning(tmp_path: Path) -> None:
    edge = (
        "  - {from: gate, to: ship}\n  - {from: gate, to: late, port: timeout}\n"
        "  - {from: charge, to: late}\n"
    )
    text = gate("kind: signal\nname: paid", edge=edge)
    late = "  late: {kind: wait, seconds: 1, join: any}\n  release:\n"
    text = text.replace("  release:\n", late)
    message = (
        "edges[3].port: 'gate' waits without a limit, so it never leaves by the port 'timeout'; "
        "add 'timeout' to the node, or remove the edge"
    )
    assert warned(text, tmp_path) == [(26, message)]
    assert warned(text.replace("name: paid", "name: paid\n    timeout: 5"), tmp_path) == []


def test_only_a_step_can_compensate(tmp_path: Path) -> None:
    release = '    kind: http\n    url: "http://shop/release"\n'
    text = changed((release, "    kind: wait\n    seconds: 5\n"))
    assert told(text, tmp_path) == [
        "order.yaml:7: nodes.reserve.compensate: the node 'release' cannot compensate another; only the kinds http, code, agent, call can",
    ]


def test_an_output_of_a_node_that_runs_at_the_same_time_is_a_warning(tmp_path: Path) -> None:
    beside = "edges:\n  - {from: reserve, to: beside}"
    text = changed(
        (
            "  release:\n",
            '  beside: {kind: http, url: "http://x/{{ outputs.charge.status }}"}\n  release:\n',
        ),
        ("edges:", beside),
    )
    assert warned(text, tmp_path) == [
        (
            18,
            "nodes.beside.url: outputs.charge: 'charge' may not have completed at this point, because "
            "no path leads from it to 'beside'; add an edge, or use the filter default for a value "
            "that may be missing",
        )
    ]
    guarded = text.replace("outputs.charge.status", "outputs.charge.status | default(0)")
    assert warned(guarded, tmp_path) == []


@pytest.mark.parametrize(
    "expression",
    [
        "outputs.ship.id | default('none')",
        "outputs.ship.id if outputs.ship is defined else 0",
        "outputs.get('ship')",
        "'ship' in outputs and outputs.ship.id",
    ],
)
def test_a_guarded_reference_to_a_later_node_is_no_mistake(expression: str, tmp_path: Path) -> None:
    text = changed((' outputs.reserve.body.id }}"\n  gate', f' {expression} }}}}"\n  gate'))
    assert warned(text, tmp_path) == []


@pytest.mark.parametrize(
    "condition",
    [
        "has(outputs.ship) && outputs.ship.id == 1",
        "'ship' in outputs",
        "input.x.exists(ship, ship)",
    ],
)
def test_a_guarded_condition_is_no_mistake(condition: str, tmp_path: Path) -> None:
    edge = f'{{from: charge, to: gate, when: "{condition}"}}'
    assert warned(changed(("{from: charge, to: gate}", edge)), tmp_path) == []
