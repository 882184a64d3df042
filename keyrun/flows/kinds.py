"""The kinds of nodes that a file can have: the fields of each kind, and how a node is made."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from keyrun.flows.nodes import approval as approvals
from keyrun.flows.nodes import branch as branches
from keyrun.flows.nodes import signal as signals
from keyrun.flows.nodes.agent import agent
from keyrun.flows.nodes.code import LANGUAGES, InvalidCode, code
from keyrun.flows.nodes.fail import fail
from keyrun.flows.nodes.http import METHODS, http
from keyrun.flows.nodes.loop import MOST
from keyrun.flows.nodes.switch import DEFAULT, switch
from keyrun.flows.nodes.wait import LONGEST, wait
from keyrun.flows.nodes.workflow import child
from keyrun.flows.policies import COUNT, OF_NODES, OF_STEPS, SECONDS
from keyrun.flows.shapes import (
    Anything,
    Choice,
    Field,
    Flag,
    ListOf,
    MapOf,
    Number,
    Record,
    SchemaReference,
    Templated,
    Text,
    TimeShape,
    WrongField,
)
from keyrun.flows.source import Place
from keyrun.flows.templates import has_template
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.graphs.body import MAX_CONCURRENCY, MAX_ITEMS
from keyrun.runtime.texts import did_you_mean

Fields = dict[str, Any]

_ANY = Anything()
_TEXT = Text()
_NAMES = ListOf(_TEXT)
_MAPPING = Templated(MapOf(shape=_ANY))
_OUTPUT = Field(COUNT, "The largest output, in bytes.")
_ENV = Field(_NAMES, "The environment variables that its templates can use as env.NAME.")
_ARGS = Field(_MAPPING, "Arguments by name, with templates, or one template for all of them.")
_CONNECT = "connect nodes under 'edges', as in '{from: a, to: b}'"
_INSTEAD = dict.fromkeys(("depends_on", "needs", "next", "after"), _CONNECT)


@attrs.frozen(kw_only=True)
class Making:
    """The arguments that make a node: how errors name it, and what the flow may call."""

    where: str
    """As in "nodes.fetch"."""
    folder: Path | None
    functions: Mapping[str, Callable[..., Any]]
    workflows: Mapping[str, Workflow[Any, Any]]
    max_output: int


@attrs.frozen(kw_only=True)
class Kind:
    """One kind of node."""

    about: str
    fields: Mapping[str, Field]
    """Its own fields."""
    make: Callable[[Fields, Making], Any] | None
    """Returns the target for `graph.node`, or raises `WrongField` or another `ValueError`. None for
    a kind with a body."""
    body: Literal["loop", "map"] | None = None
    """How the builder adds the nodes of its body."""
    templates: tuple[str, ...] = ()
    """The fields that may contain templates."""
    conditions: tuple[str, ...] = ()
    """The fields that are conditions in CEL."""
    ports: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    """The ports by which the node fails if no edge takes them."""
    output: tuple[str, ...] | None = None
    """The fields of its output, if they are always the same."""
    steps: bool = True
    """Whether it is a step, with a timeout and retries."""
    ends_run: bool = False
    """Whether the run ends there, so that no edge can lead out of it."""
    instead: Mapping[str, str] = attrs.field(factory=dict)
    """The replacements of fields that other tools have."""

    def record(self, name: str) -> Record:
        """Return the shape with all fields. `name` is the name of the kind."""
        policies = {**OF_NODES, **(OF_STEPS if self.steps else {})}
        about = {"about": Field(_TEXT, "A remark for readers.")}
        fields = {**about, **self.fields, **policies}
        return Record(fields, f"a node of kind {name!r}", {**_INSTEAD, **self.instead})

    def ports_of(self, fields: Fields) -> tuple[str, ...]:
        """Return the ports of a node with these fields, which may have errors."""
        own = [*_items(fields, "ports"), *(case.get("port") for case in _cases(fields))]
        return tuple(dict.fromkeys(port for port in (*own, *self.ports) if isinstance(port, str)))

    def conditions_of(self, fields: Fields) -> Iterator[tuple[Place, Any]]:
        """Yield the conditions of a node, with their places below the node."""
        for name in self.conditions:
            if name == "cases":
                for number, case in enumerate(_cases(fields)):
                    yield (name, number, "when"), case.get("when")
            elif name in fields:
                yield (name,), fields[name]


def _items(fields: Fields, name: str) -> list[Any]:
    found = fields.get(name)
    return found if isinstance(found, list) else []


def _cases(fields: Fields) -> list[Fields]:
    """Return the cases of a switch, with an empty mapping for each that is no mapping."""
    return [case if isinstance(case, dict) else {} for case in _items(fields, "cases")]


def _only(fields: Fields, *names: str) -> Fields:
    return {name: fields[name] for name in names if name in fields}


def _http(fields: Fields, making: Making) -> Any:
    bodies = [name for name in ("json", "form", "body") if name in fields]
    if len(bodies) > 1:
        reason = f"a request has one body, got {' and '.join(bodies)}; keep one of them"
        raise WrongField(bodies[-1], reason)
    chosen = _only(fields, *KINDS["http"].fields)
    return http(**{"max_output": making.max_output, **chosen}, where=making.where)


def _agent(fields: Fields, making: Making) -> Any:
    if "prompt" not in fields and "messages" not in fields:
        raise ValueError("requires the field 'prompt' or the field 'messages'")
    if "messages" in fields and "prompt" in fields:
        raise WrongField("messages", "a node has 'prompt' or 'messages', got both; remove one")
    if "messages" in fields and "system" in fields:
        reason = "'system' is for 'prompt'; make the system prompt the first of 'messages'"
        raise WrongField("system", reason)
    chosen = _only(fields, *KINDS["agent"].fields)
    return agent(**{"max_output": making.max_output, **chosen}, where=making.where)


def _code(fields: Fields, making: Making) -> Any:
    if "source" not in fields and "file" not in fields:
        raise ValueError("requires the field 'source' with the code, or 'file' with its path")
    if "source" in fields and "file" in fields:
        raise WrongField("file", "a node has 'source' or 'file', got both; remove one")
    source: str | bytes = fields.get("source", "")
    if "file" in fields:
        source = _read(making.folder, fields["file"], fields.get("language"))
    chosen = _only(fields, "language", "args", "env", "max_output")
    try:
        return code(source, **{"max_output": making.max_output, **chosen}, where=making.where)
    except InvalidCode as error:
        if "file" in fields:
            at = "" if error.line is None else f":{error.line}"
            reason = f"{fields['file']}{at}: {error.reason}"
            raise WrongField("file", reason) from error
        raise WrongField("source", error.reason, error.line or 1) from error


def _read(folder: Path | None, name: str, language: str | None) -> str | bytes:
    if folder is None:
        raise WrongField("file", "only a flow that is in a file can name a file; use 'source'")
    try:
        data = (folder / name).read_bytes()
        return data if language == "wasm" else data.decode()
    except OSError as error:
        reason = f"the file {name!r} cannot be read: {error.strerror}"
        raise WrongField("file", reason) from error
    except UnicodeDecodeError as error:
        raise WrongField("file", f"the file {name!r} is not UTF-8") from error


def _call(fields: Fields, making: Making) -> Any:
    name = fields["function"]
    if name not in making.functions:
        raise WrongField("function", _missing("function", name, making.functions))
    return making.functions[name]


def _workflow(fields: Fields, making: Making) -> Any:
    name = fields["workflow"]
    if name not in making.workflows:
        raise WrongField("workflow", _missing("workflow", name, making.workflows))
    try:
        options = _only(fields, "input", "key")
        return child(making.workflows[name], **options, where=making.where)
    except ValueError as error:
        raise WrongField("input", str(error)) from error


def _missing(what: str, name: str, known: Mapping[str, Any]) -> str:
    listed = f"the {what}s are {', '.join(sorted(known))}" if known else f"no {what}s were given"
    option = "--with MODULE" if what == "function" else "--with MODULE or --with FILE"
    meant = did_you_mean(name, known)
    return f"there is no {what} {name!r}{meant or f'; {listed}'} (see {option})"


def _wait(fields: Fields, making: Making) -> Any:
    if "seconds" not in fields and "until" not in fields:
        raise ValueError(
            "requires the field 'seconds' with the length of the wait, or 'until' with its end"
        )
    if "seconds" in fields and "until" in fields:
        raise WrongField("until", "a node has 'seconds' or 'until', got both; remove one")
    return wait(**_only(fields, "seconds", "until"), where=making.where)


def _signal(fields: Fields, making: Making) -> Any:
    if has_template(fields["name"]):
        raise WrongField("name", "the name of a signal cannot contain a template; write the name")
    try:
        return signals.signal(fields["name"], timeout=fields.get("timeout"))
    except ValueError as error:
        raise WrongField("name", str(error).removeprefix("name ")) from error


def _switch(fields: Fields, making: Making) -> Any:
    cases: dict[str, str] = {}
    for number, case in enumerate(fields["cases"]):
        port = case["port"]
        if port in (*cases, DEFAULT):
            reason = f"the port {port!r} has two cases; join their conditions with ||"
            if port == DEFAULT:
                reason = f"the port {port!r} is taken if no condition is true; choose another name"
            raise WrongField(("cases", number, "port"), reason)
        cases[port] = case["when"]
    return switch(cases)


def _fail(fields: Fields, making: Making) -> Any:
    return fail(fields["reason"], where=making.where)


def _branch(fields: Fields, making: Making) -> Any:
    return branches.branch(fields["when"])


def _approval(fields: Fields, making: Making) -> Any:
    return approvals.approval(timeout=fields.get("timeout"))


KINDS: dict[str, Kind] = {
    "http": Kind(
        about="Sends a request and gives its status, headers and body.",
        fields={
            "url": Field(_TEXT, "The address, with http:// or https://.", required=True),
            "method": Field(Choice(METHODS), "The method. Default GET."),
            "params": Field(_MAPPING, "Parameters that are added to the address."),
            "headers": Field(Templated(MapOf(shape=Text(scalar=True))), "Headers by name."),
            "json": Field(_ANY, "The body, sent as JSON."),
            "form": Field(_MAPPING, "The body, sent as a form."),
            "body": Field(Text(empty=True), "The body, sent as text."),
            "accept": Field(
                ListOf(Number(whole=True, least=200, most=599)),
                "Statuses outside of 2xx that do not fail the node.",
            ),
            "follow_redirects": Field(Flag(), "Follow redirects. Default false."),
            "idempotency_header": Field(_TEXT, "The header that has the idempotency key."),
            "env": _ENV,
            "max_output": _OUTPUT,
        },
        make=_http,
        templates=("url", "params", "headers", "json", "form", "body"),
        output=("status", "headers", "body"),
    ),
    "code": Kind(
        about="Runs a function main(data) in a child process and gives its result.",
        fields={
            "language": Field(Choice(LANGUAGES), "The language. Default python."),
            "source": Field(_TEXT, "The code."),
            "file": Field(_TEXT, "The file with the code, relative to the flow."),
            "args": _ARGS,
            "env": _ENV,
            "max_output": _OUTPUT,
        },
        make=_code,
        templates=("args",),
    ),
    "agent": Kind(
        about="Asks a model and gives its answer, its tool calls and the usage.",
        fields={
            "model": Field(_TEXT, "The name of the model.", required=True),
            "prompt": Field(_TEXT, "The prompt."),
            "system": Field(_TEXT, "The system prompt."),
            "messages": Field(
                Templated(ListOf(Templated(MapOf(shape=_ANY)))),
                "The messages of the conversation, instead of a prompt.",
            ),
            "options": Field(_MAPPING, "More fields of the request: temperature, tools ..."),
            "json": Field(Flag(), "Ask for JSON and parse the answer."),
            "base_url_env": Field(
                _TEXT, "The environment variable with the address. Default OPENAI_BASE_URL."
            ),
            "key_env": Field(
                _TEXT, "The environment variable with the key. Default OPENAI_API_KEY."
            ),
            "max_output": _OUTPUT,
        },
        make=_agent,
        templates=("model", "prompt", "system", "messages", "options"),
        output=("content", "model", "finish_reason", "usage", "tool_calls", "message"),
    ),
    "call": Kind(
        about="Calls a registered Python function.",
        fields={
            "function": Field(_TEXT, "The name of the function.", required=True),
            "args": _ARGS,
            "ports": Field(_NAMES, "The ports by which it can leave."),
        },
        make=_call,
        templates=("args",),
    ),
    "branch": Kind(
        about="Leaves by the port then if a condition is true, and by else if it is false.",
        fields={"when": Field(_TEXT, "The condition, in CEL.", required=True)},
        make=_branch,
        conditions=("when",),
        ports=branches.PORTS,
        steps=False,
    ),
    "approval": Kind(
        about="Waits for a person and leaves by the port approved, rejected or timeout. "
        "It fails if no edge takes rejected or timeout.",
        fields={"timeout": Field(SECONDS, "The longest wait, in seconds.")},
        make=_approval,
        ports=approvals.PORTS,
        failing=approvals.FAILING,
        output=("by", "comment", "output"),
        steps=False,
    ),
    "signal": Kind(
        about="Waits for a signal and leaves by the port received or timeout. It fails if no edge "
        "takes timeout.",
        fields={
            "name": Field(_TEXT, "The name of the signal.", required=True),
            "timeout": Field(SECONDS, "The longest wait, in seconds."),
        },
        make=_signal,
        ports=signals.PORTS,
        failing=signals.FAILING,
        output=("payload", "output"),
        steps=False,
        instead=dict.fromkeys(("signal", "event", "channel"), "write 'name'"),
    ),
    "switch": Kind(
        about="Leaves by the port of the first case whose condition is true, or by default.",
        fields={
            "cases": Field(
                ListOf(
                    Record(
                        {
                            "port": Field(_TEXT, "The port.", required=True),
                            "when": Field(_TEXT, "The condition, in CEL.", required=True),
                        },
                        "a case",
                        {
                            **dict.fromkeys(("if", "condition", "case"), "write 'when'"),
                            **dict.fromkeys(("to", "then", "next", "goto"), _CONNECT),
                        },
                    ),
                    some=True,
                    example="- {port: large, when: output.total > 100}",
                ),
                "The ports with their conditions, in order.",
                required=True,
            ),
        },
        make=_switch,
        conditions=("cases",),
        ports=(DEFAULT,),
        steps=False,
        instead={
            "default": "add an edge with 'port: default'",
            **dict.fromkeys(("when", "branches", "conditions", "ports"), "write 'cases'"),
        },
    ),
    "wait": Kind(
        about="Waits for a number of seconds, or until a time.",
        fields={
            "seconds": Field(
                Templated(Number(least=0, most=LONGEST, unit="seconds")),
                "The length of the wait, in seconds.",
            ),
            "until": Field(TimeShape(), "The time at which the wait ends, with its time zone."),
        },
        make=_wait,
        templates=("seconds", "until"),
        steps=False,
        instead={
            **dict.fromkeys(("for", "duration", "delay", "timeout"), "write 'seconds'"),
            **dict.fromkeys(("minutes", "hours", "days"), "write the time in 'seconds'"),
            "at": "write 'until'",
        },
    ),
    "fail": Kind(
        about="Ends the run as failed, with a reason.",
        fields={"reason": Field(_TEXT, "The reason, for people.", required=True)},
        make=_fail,
        templates=("reason",),
        steps=False,
        ends_run=True,
        instead=dict.fromkeys(("message", "error"), "write 'reason'"),
    ),
    "loop": Kind(
        about="Repeats a body of nodes while a condition is true.",
        fields={
            "while": Field(_TEXT, "The condition, in CEL, before each turn.", required=True),
            "start": Field(_ANY, "The output before the first turn."),
            "max_iterations": Field(COUNT, f"The largest number of turns. Default {MOST}."),
            "body": Field(
                SchemaReference("body"), "The nodes and edges of one turn.", required=True
            ),
        },
        make=None,
        body="loop",
        templates=("start",),
        conditions=("while",),
        steps=False,
    ),
    "map": Kind(
        about="Runs a body of nodes for each item of a list. Its output has the results in the "
        "order of the items, and the failures.",
        fields={
            "items": Field(Templated(ListOf(_ANY)), "The list, or a template.", required=True),
            "max_concurrency": Field(
                COUNT, f"The number of items at the same time. Default {MAX_CONCURRENCY}."
            ),
            "max_items": Field(COUNT, f"The largest number of items. Default {MAX_ITEMS}."),
            "fail_fast": Field(
                Flag(), "The first item that fails cancels the others and fails the node."
            ),
            "body": Field(
                SchemaReference("body"),
                "The nodes and edges that run for each item.",
                required=True,
            ),
        },
        make=None,
        body="map",
        templates=("items",),
        output=("results", "failures"),
        steps=False,
    ),
    "workflow": Kind(
        about="Runs another workflow as a child and gives its result.",
        fields={
            "workflow": Field(_TEXT, "The name of the workflow.", required=True),
            "input": Field(
                _ANY, "Its input. Default: the output that triggered the node, or the run's input."
            ),
            "key": Field(_TEXT, "Its ordering key. Without one, it is a part of this run."),
        },
        make=_workflow,
        templates=("input", "key"),
        steps=False,
    ),
}

OTHER_WORDS = {
    **dict.fromkeys(("sleep", "delay", "timer", "pause"), "wait"),
    **dict.fromkeys(("event", "message", "receive"), "signal"),
    **dict.fromkeys(("case", "choice", "choose", "match", "router"), "switch"),
    **dict.fromkeys(("error", "raise", "throw", "abort", "stop", "terminate"), "fail"),
    **dict.fromkeys(("if", "condition", "decision"), "branch"),
    **dict.fromkeys(("human", "gate", "review"), "approval"),
    **dict.fromkeys(("while", "repeat"), "loop"),
    **dict.fromkeys(("foreach", "for_each", "for", "each", "iterate", "batch"), "map"),
    **dict.fromkeys(("request", "rest", "webhook"), "http"),
    **dict.fromkeys(("script", "python", "javascript"), "code"),
    **dict.fromkeys(("function", "step", "task"), "call"),
    **dict.fromkeys(("llm", "model", "chat"), "agent"),
    **dict.fromkeys(("child", "flow", "subflow", "subworkflow"), "workflow"),
}
"""The names that other tools have for the kinds."""
