"""The document that a file with a flow is: its fields, all that is wrong with it, its schema."""

from collections.abc import Iterator
from typing import Any

from keyrun.flows.errors import TemplateFailed
from keyrun.flows.kinds import KINDS
from keyrun.flows.policies import CHECKPOINT, COUNT, RESOURCES, RETRY, SECONDS
from keyrun.flows.record import Field, ListOf, Record, Variants
from keyrun.flows.scope import NAMES, UNDOING
from keyrun.flows.shape import Choice, Flag, Number, Problem, Schema, Text, said
from keyrun.flows.source import Place
from keyrun.flows.templates import asked_for, fillable
from keyrun.runtime.graphs.condition import Condition, InvalidExpression

NODE = Variants("kind", {name: kind.record for name, kind in KINDS.items()}, "What it does.")


class Node:
    """A node, whose fields depend on its kind."""

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """All that is wrong with it, its templates and its conditions included."""
        yield from NODE.problems(value, place)
        kind = KINDS.get(str(value.get("kind"))) if isinstance(value, dict) else None
        if kind is None:
            return
        for name in kind.templates:
            yield from template_problems(value.get(name), (*place, name))
        for name in kind.expressions:
            yield from expression_problems(value.get(name), (*place, name))
        if kind.make is None and isinstance(value.get("body"), dict):
            yield from BODY.problems(value["body"], (*place, "body"))

    def schema(self) -> Schema:
        """One of the kinds."""
        return {"$ref": "#/$defs/node"}


class Edge:
    """An edge, with its condition."""

    record = Record(
        {
            "from": Field(Text(), "The node it leads from.", required=True),
            "to": Field(Text(), "The node it leads to.", required=True),
            "on": Field(Choice(("complete", "fail", "all")), "Taken when the node has done so."),
            "port": Field(Text(), "Taken when the node has left by this port."),
            "to_port": Field(Text(), "What the target sees as its port."),
            "when": Field(Text(), "Taken if this condition, in CEL, is true."),
            "back": Field(Flag(), "It leads back to an earlier node: a loop."),
            "max_iterations": Field(COUNT, "The most turns of that loop."),
        }
    )

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """All that is wrong with it."""
        yield from self.record.problems(value, place)
        if isinstance(value, dict):
            yield from expression_problems(value.get("when"), (*place, "when"))

    def schema(self) -> Schema:
        """An object."""
        return self.record.schema()


class Nodes:
    """The nodes by name."""

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """All that is wrong with each."""
        if not isinstance(value, dict):
            yield place, f"must be a mapping from names to nodes, got {said(value)}"
            return
        if not value:
            yield place, "must not be empty"
        for name, node in value.items():
            yield from Node().problems(node, (*place, name))

    def schema(self) -> Schema:
        """An object."""
        return {"type": "object", "additionalProperties": Node().schema(), "minProperties": 1}


LIMITS = Record(
    {
        "run_timeout": Field(SECONDS, "Seconds from the start of a run to its end."),
        "step_timeout": Field(SECONDS, "Seconds for one attempt, where a node says nothing."),
        "max_attempts": Field(COUNT, "Executions of a node, where it says nothing."),
        "max_iterations": Field(COUNT, "Steps of a run."),
        "retry_budget": Field(Number(whole=True, least=0), "Retries of a run in all."),
        "max_interruptions": Field(COUNT, "Crashes that one step may be in the middle of."),
    }
)
_PARTS = {
    "nodes": Field(Nodes(), "What is done.", required=True),
    "edges": Field(ListOf(Edge()), "What comes after what."),
}
BODY = Record(_PARTS)
_OPTIONS = {
    "fail_fast": Field(Flag(), "The first failure cancels what else is running."),
    "max_concurrency": Field(COUNT, "Nodes that are under way at the same time."),
    "schedule": Field(Choice(("eager", "waves")), "Whether levels wait for each other."),
    "compensation": Field(Choice(("all", "branch")), "Undo all, or what led to the failure."),
    "compensate_on": Field(
        Choice(("completed", "attempted")), "Undo what completed, or also what failed."
    ),
    "while_waiting": Field(
        Choice(("hold", "yield")), "Whether the next run of the key waits for one that waits."
    ),
    "instances": Field(COUNT, "Runs of it that are under way at once."),
    "when_full": Field(Choice(("queue", "reject")), "What becomes of more of them."),
    "checkpoint": Field(CHECKPOINT, "How often a run waits for its disk."),
    "resources": Field(RESOURCES, "What its nodes share, over all runs."),
}
DOCUMENT = Record(
    {
        "name": Field(Text(), "The name of the workflow.", required=True),
        "version": Field(COUNT, "Its version. 1 unless said otherwise."),
        "about": Field(Text(), "A remark for people."),
        **_PARTS,
        **_OPTIONS,
        "retry": Field(RETRY, "For nodes that have none of their own."),
        "limits": Field(LIMITS, "What a run may take."),
        "max_output": Field(COUNT, "Bytes that the output of a node may have. 1 MiB."),
        "max_run_output": Field(COUNT, "Bytes of all outputs of a run. 10 MiB."),
    }
)


def template_problems(value: Any, place: Place) -> Iterator[Problem]:
    """Templates in `value` that cannot be read, or are about what there is not."""
    match value:
        case str():
            where = ".".join(map(str, place))
            try:
                fillable(value, where)
            except TemplateFailed as error:
                yield place, str(error).removeprefix(f"the template {where}, ")
                return
            for name in sorted(asked_for(value).difference(NAMES, UNDOING)):
                yield place, f"{name!r} is unknown; a template is about {', '.join(NAMES)}"
        case dict():
            for name, item in value.items():
                yield from template_problems(item, (*place, name))
        case list():
            for at, item in enumerate(value):
                yield from template_problems(item, (*place, at))


def expression_problems(value: Any, place: Place) -> Iterator[Problem]:
    """What is wrong with a condition."""
    if isinstance(value, str) and value:
        try:
            Condition(value)
        except InvalidExpression as error:
            for fault in error.faults:
                yield place, f"in {value!r}: {fault}"


def schema() -> Schema:
    """The JSON Schema of a document, for editors."""
    node = NODE.schema()
    for variant, kind in zip(node["oneOf"], KINDS.values(), strict=True):
        variant["description"] = kind.about
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A flow of Keyrun",
        **DOCUMENT.schema(),
        "$defs": {"node": node, "body": BODY.schema()},
    }
