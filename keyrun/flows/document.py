"""The document of a flow: the shape of the whole file, and its JSON Schema."""

from collections.abc import Iterator
from typing import Any

from keyrun.flows.kinds import KINDS, OTHER_WORDS
from keyrun.flows.policies import CHECKPOINT, COUNT, RESOURCES, RETRY, SECONDS
from keyrun.flows.shapes import (
    Choice,
    Fault,
    Field,
    Flag,
    ListOf,
    Number,
    Record,
    Schema,
    Text,
    Variants,
    shown,
)
from keyrun.flows.source import Place

_KINDS = Variants(
    "kind",
    {name: kind.record(name) for name, kind in KINDS.items()},
    "What the node does.",
    instead=OTHER_WORDS,
)


class NodeShape:
    """A node. Its fields depend on its kind."""

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Check the fields of the node, and its body if it has one."""
        yield from _KINDS.faults(value, place)
        kind = KINDS.get(str(value.get("kind"))) if isinstance(value, dict) else None
        if kind is not None and kind.body is not None and isinstance(value.get("body"), dict):
            yield from BODY.faults(value["body"], (*place, "body"))

    def schema(self) -> Schema:
        """Return a reference to the kinds."""
        return {"$ref": "#/$defs/node"}


class NodesShape:
    """Nodes by name."""

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Check each node."""
        if not isinstance(value, dict):
            yield Fault(place, f"must be a mapping from names to nodes, got {shown(value)}")
            return
        if not value:
            yield Fault(place, "must not be empty; add a node, as in 'fetch: {kind: http, ...}'")
        for name, node in value.items():
            yield from NodeShape().faults(node, (*place, name))

    def schema(self) -> Schema:
        """Return the schema of an object."""
        return {"type": "object", "additionalProperties": NodeShape().schema(), "minProperties": 1}


EDGE = Record(
    {
        "from": Field(Text(), "The node that the edge comes from.", required=True),
        "to": Field(Text(), "The node that the edge leads to.", required=True),
        "on": Field(
            Choice(("complete", "fail", "all")),
            "Take the edge if the node completes, if it fails, or in both cases.",
        ),
        "port": Field(Text(), "Take the edge if the node leaves by this port."),
        "to_port": Field(Text(), "The port that the target sees."),
        "when": Field(Text(), "Take the edge if this condition, in CEL, is true."),
        "back": Field(Flag(), "The edge leads back to an earlier node, as in a loop."),
        "max_iterations": Field(COUNT, "The largest number of turns of that loop."),
    },
    "an edge",
    {
        "source": "write 'from'",
        "target": "write 'to'",
        "if": "write 'when'",
        "condition": "write 'when'",
    },
)
LIMITS = Record(
    {
        "run_timeout": Field(SECONDS, "Seconds from the start of a run to its end."),
        "step_timeout": Field(SECONDS, "Seconds for one attempt of a node without a timeout."),
        "max_attempts": Field(COUNT, "The number of attempts of a node without a retry policy."),
        "max_iterations": Field(COUNT, "The number of steps of a run."),
        "retry_budget": Field(Number(whole=True, least=0), "The number of retries of a run."),
        "max_interruptions": Field(COUNT, "The number of crashes during one step."),
    },
    "limits",
)
_PARTS = {
    "nodes": Field(NodesShape(), "The nodes by name.", required=True),
    "edges": Field(ListOf(EDGE, example="- {from: a, to: b}"), "The edges between the nodes."),
}
BODY = Record(_PARTS, "a body")
_OPTIONS = {
    "fail_fast": Field(Flag(), "The first unhandled failure cancels the running nodes."),
    "max_concurrency": Field(COUNT, "The number of nodes that are active at the same time."),
    "schedule": Field(
        Choice(("eager", "waves")), "Start nodes as soon as possible, or level by level."
    ),
    "compensation": Field(
        Choice(("all", "branch")), "Compensate all nodes, or those that led to the failure."
    ),
    "compensate_on": Field(
        Choice(("completed", "attempted")), "Compensate completed nodes, or also those that began."
    ),
    "while_waiting": Field(
        Choice(("hold", "yield")), "What the next run of the key does while one waits."
    ),
    "instances": Field(COUNT, "The number of runs of this flow at the same time."),
    "when_full": Field(Choice(("queue", "reject")), "Queue or reject further runs."),
    "checkpoint": Field(CHECKPOINT, "How often a run waits for the disk."),
    "resources": Field(RESOURCES, "The resources that its nodes share, over all runs."),
}
DOCUMENT = Record(
    {
        "name": Field(Text(), "The name of the workflow.", required=True),
        "version": Field(COUNT, "The version of the workflow. Default 1."),
        "about": Field(Text(), "A remark for readers."),
        **_PARTS,
        **_OPTIONS,
        "retry": Field(RETRY, "The retry policy of nodes that have none."),
        "limits": Field(LIMITS, "The limits of a run."),
        "max_output": Field(COUNT, "The largest output of a node, in bytes. Default 1 MiB."),
        "max_run_output": Field(COUNT, "All outputs of a run together. Default 10 MiB."),
    },
    "a flow",
)


def schema() -> Schema:
    """Return the JSON Schema of a document, for editors."""
    node = _KINDS.schema()
    for variant, kind in zip(node["oneOf"], KINDS.values(), strict=True):
        variant["description"] = kind.about
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A flow of Keyrun",
        **DOCUMENT.schema(),
        "$defs": {"node": node, "body": BODY.schema()},
    }
