"""The kinds of nodes that a file can have: the fields of each, and how a node is made of them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from keyrun.flows.nodes import approval as approvals
from keyrun.flows.nodes import branch as branches
from keyrun.flows.nodes.agent import agent
from keyrun.flows.nodes.child import child
from keyrun.flows.nodes.code import LANGUAGES, code
from keyrun.flows.nodes.http import METHODS, http
from keyrun.flows.nodes.loop import MOST
from keyrun.flows.policies import COUNT, OF_NODES, OF_STEPS, SECONDS
from keyrun.flows.record import Field, Later, ListOf, MapOf, Record
from keyrun.flows.shape import Anything, Choice, Flag, Number, Text
from keyrun.runtime.definitions.workflow import Workflow

Fields = dict[str, Any]

_ANY = Anything()
_TEXT = Text()
_NAMES = ListOf(_TEXT)
_OUTPUT = Field(COUNT, "Bytes that its output may have.")
_ENV = Field(_NAMES, "Variables of the environment that it may use, in templates as env.NAME.")
_ARGS = Field(MapOf(shape=_ANY), "Arguments by name; texts may be templates.")


@attrs.frozen(kw_only=True)
class Place:
    """What a node is made in: the file and what that can call."""

    where: str
    """How errors name the node, as in "nodes.fetch"."""
    folder: Path | None
    functions: Mapping[str, Callable[..., Any]]
    workflows: Mapping[str, Workflow[Any, Any]]
    max_output: int


@attrs.frozen(kw_only=True)
class Kind:
    """One kind of node."""

    about: str
    fields: Mapping[str, Field]
    """Those of its own."""
    make: Callable[[Fields, Place], Any] | None
    """What `graph.node` gets as its target; raises `ValueError` where the fields do not fit. None
    for a loop, which is more than one node."""
    subject: str | None = None
    """The field that `make` complains about."""
    templates: tuple[str, ...] = ()
    """The fields that may have templates in them."""
    expressions: tuple[str, ...] = ()
    """The fields that are conditions in CEL."""
    ports: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    """The ports by which the node fails if no edge takes them."""
    steps: bool = True
    """Whether it is a step, with a timeout and a retry."""

    @property
    def record(self) -> Record:
        """All its fields."""
        policies = {**OF_NODES, **(OF_STEPS if self.steps else {})}
        about = {"about": Field(Text(), "A remark for people.")}
        return Record({**about, **self.fields, **policies})


def _only(fields: Fields, *names: str) -> Fields:
    return {name: fields[name] for name in names if name in fields}


def _http(fields: Fields, place: Place) -> Any:
    chosen = _only(fields, *(name for name in KINDS["http"].fields))
    return http(**{"max_output": place.max_output, **chosen}, where=place.where)


def _agent(fields: Fields, place: Place) -> Any:
    chosen = _only(fields, *(name for name in KINDS["agent"].fields))
    return agent(**{"max_output": place.max_output, **chosen}, where=place.where)


def _code(fields: Fields, place: Place) -> Any:
    if ("source" in fields) == ("file" in fields):
        raise ValueError("needs its code, in 'source' or in a 'file', and not in both")
    source: str | bytes = fields.get("source", "")
    if "file" in fields:
        source = _read(place.folder, fields["file"], fields.get("language"))
    chosen = _only(fields, "language", "args", "env", "max_output")
    return code(source, **{"max_output": place.max_output, **chosen}, where=place.where)


def _read(folder: Path | None, name: str, language: str | None) -> str | bytes:
    if folder is None:
        raise ValueError("'file' is for flows that are in a file themselves; use 'source'")
    try:
        data = (folder / name).read_bytes()
        return data if language == "wasm" else data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the file {name!r} cannot be read: {error}") from error


def _call(fields: Fields, place: Place) -> Any:
    name = fields["function"]
    if name not in place.functions:
        known = ", ".join(sorted(place.functions)) or "none"
        raise ValueError(f"there is no function {name!r}; those that are registered: {known}")
    return place.functions[name]


def _branch(fields: Fields, place: Place) -> Any:
    return branches.branch(fields["when"])


def _approval(fields: Fields, place: Place) -> Any:
    return approvals.approval(timeout=fields.get("timeout"))


def _workflow(fields: Fields, place: Place) -> Any:
    name = fields["workflow"]
    if name not in place.workflows:
        known = ", ".join(sorted(place.workflows)) or "none"
        raise ValueError(f"there is no workflow {name!r}; those that are known: {known}")
    return child(place.workflows[name], **_only(fields, "input", "key"), where=place.where)


KINDS: dict[str, Kind] = {
    "http": Kind(
        about="A request to a server; gives status, headers and body.",
        fields={
            "url": Field(_TEXT, "Where to ask.", required=True),
            "method": Field(Choice(METHODS), "GET unless said otherwise."),
            "params": Field(MapOf(shape=_ANY), "What goes behind the question mark."),
            "headers": Field(MapOf(shape=_TEXT), "Headers by name."),
            "json": Field(_ANY, "The body, as JSON."),
            "form": Field(MapOf(shape=_ANY), "The body, as a form."),
            "body": Field(Text(empty=True), "The body, as text."),
            "accept": Field(
                ListOf(Number(whole=True, least=200, most=599)),
                "Statuses beyond 2xx that are an answer and not a failure.",
            ),
            "follow_redirects": Field(Flag(), "Follow redirects."),
            "idempotency_header": Field(_TEXT, "The header with the idempotency key."),
            "env": _ENV,
            "max_output": _OUTPUT,
        },
        make=_http,
        subject="url",
        templates=("url", "params", "headers", "json", "form", "body"),
    ),
    "code": Kind(
        about="A function main(data) in a process of its own; gives what it returns.",
        fields={
            "language": Field(Choice(LANGUAGES), "Python unless said otherwise."),
            "source": Field(_TEXT, "The code."),
            "file": Field(_TEXT, "The file that the code is in, beside the flow."),
            "args": _ARGS,
            "env": _ENV,
            "max_output": _OUTPUT,
        },
        make=_code,
        subject="source",
        templates=("args",),
    ),
    "agent": Kind(
        about="A question to a model; gives content, usage and tool calls.",
        fields={
            "model": Field(_TEXT, "Which model.", required=True),
            "prompt": Field(_TEXT, "What to ask."),
            "system": Field(_TEXT, "What the model is told first."),
            "messages": Field(ListOf(MapOf(shape=_ANY)), "The talk so far, instead of a prompt."),
            "options": Field(MapOf(shape=_ANY), "More for the request: temperature, tools ..."),
            "json": Field(Flag(), "Ask for JSON, and take the answer apart."),
            "base_url_env": Field(_TEXT, "The variable with the address. OPENAI_BASE_URL."),
            "key_env": Field(_TEXT, "The variable with the key. OPENAI_API_KEY."),
            "max_output": _OUTPUT,
        },
        make=_agent,
        subject="prompt",
        templates=("model", "prompt", "system", "messages", "options"),
    ),
    "call": Kind(
        about="A Python function that was registered by name.",
        fields={
            "function": Field(_TEXT, "The name it is registered by.", required=True),
            "args": _ARGS,
            "ports": Field(_NAMES, "The ports that it may leave by."),
        },
        make=_call,
        subject="function",
        templates=("args",),
    ),
    "branch": Kind(
        about="Leaves by the port then or else.",
        fields={"when": Field(_TEXT, "The condition, in CEL.", required=True)},
        make=_branch,
        expressions=("when",),
        ports=branches.PORTS,
        steps=False,
    ),
    "approval": Kind(
        about="Waits for a person; leaves by the port approved, rejected or timeout. "
        "Fails if no edge takes rejected or timeout.",
        fields={"timeout": Field(SECONDS, "Seconds to wait.")},
        make=_approval,
        ports=approvals.PORTS,
        failing=approvals.FAILING,
        steps=False,
    ),
    "loop": Kind(
        about="A body of nodes, again and again while a condition holds.",
        fields={
            "while": Field(_TEXT, "The condition, in CEL, before each turn.", required=True),
            "start": Field(_ANY, "The output before the first turn."),
            "max_iterations": Field(COUNT, f"The most turns there may be. Default {MOST}."),
            "body": Field(Later("body"), "The nodes and edges of one turn.", required=True),
        },
        make=None,
        templates=("start",),
        expressions=("while",),
        steps=False,
    ),
    "workflow": Kind(
        about="A run of another workflow; gives its result.",
        fields={
            "workflow": Field(_TEXT, "Its name.", required=True),
            "input": Field(_ANY, "Its input. What triggered the node, or the input of the run."),
            "key": Field(_TEXT, "Its ordering key. Without one it is a part of this run."),
        },
        make=_workflow,
        subject="workflow",
        templates=("input", "key"),
        steps=False,
    ),
}
