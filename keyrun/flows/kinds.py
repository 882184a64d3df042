"""The kinds of nodes that a file can have: the fields of each kind, and how a node is made."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from keyrun.flows.nodes import approval as approvals
from keyrun.flows.nodes import branch as branches
from keyrun.flows.nodes.agent import agent
from keyrun.flows.nodes.code import LANGUAGES, InvalidCode, code
from keyrun.flows.nodes.http import METHODS, http
from keyrun.flows.nodes.loop import MOST
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
    Reference,
    Templated,
    Text,
    WrongField,
)
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.texts import did_you_mean

Fields = dict[str, Any]

_ANY = Anything()
_TEXT = Text()
_NAMES = ListOf(_TEXT)
_MAPPING = Templated(MapOf(shape=_ANY))
_OUTPUT = Field(COUNT, "The largest output, in bytes.")
_ENV = Field(_NAMES, "The environment variables that its templates can use as env.NAME.")
_ARGS = Field(_MAPPING, "Arguments by name, with templates, or one template for all of them.")
_INSTEAD = dict.fromkeys(
    ("depends_on", "needs", "next", "after"),
    "connect nodes under 'edges', as in '{from: a, to: b}'",
)


@attrs.frozen(kw_only=True)
class Making:
    """What a node is made with: how errors name it, and what the flow may call."""

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
    body: Literal["loop"] | None = None
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

    def record(self, name: str) -> Record:
        """Return the shape with all fields. `name` is the name of the kind."""
        policies = {**OF_NODES, **(OF_STEPS if self.steps else {})}
        about = {"about": Field(_TEXT, "A remark for readers.")}
        fields = {**about, **self.fields, **policies}
        return Record(fields, f"a node of kind {name!r}", _INSTEAD)

    def ports_of(self, fields: Fields) -> tuple[str, ...]:
        """Return the ports of a node with these fields."""
        ports = fields.get("ports")
        return self.ports or (tuple(ports) if isinstance(ports, list) else ())

    def conditions_of(self, fields: Fields) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield the conditions of a node, with their places below the node."""
        for name in self.conditions:
            if name in fields:
                yield (name,), fields[name]


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
    "loop": Kind(
        about="Repeats a body of nodes while a condition is true.",
        fields={
            "while": Field(_TEXT, "The condition, in CEL, before each turn.", required=True),
            "start": Field(_ANY, "The output before the first turn."),
            "max_iterations": Field(COUNT, f"The largest number of turns. Default {MOST}."),
            "body": Field(Reference("body"), "The nodes and edges of one turn.", required=True),
        },
        make=None,
        body="loop",
        templates=("start",),
        conditions=("while",),
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
