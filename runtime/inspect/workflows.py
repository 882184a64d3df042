"""The registered workflows, for people and programs that start runs without their code."""

from enum import StrEnum
from typing import Any

import attrs

from keyrun.runtime.definitions.workflow import Registry, Workflow
from keyrun.storage.payload import PayloadCodec


class WorkflowKind(StrEnum):
    """Name the kind of a workflow."""

    FUNCTION = "function"
    """An async function with a context."""
    MACHINE = "machine"
    """A function that is called once per turn."""
    GRAPH = "graph"
    """Nodes and edges."""


@attrs.frozen(kw_only=True)
class WorkflowInfo:
    """Describe one version of a registered workflow."""

    name: str
    """The stored name."""
    version: int
    """The version."""
    kind: WorkflowKind
    """The kind of the workflow."""
    description: str | None
    """The first paragraph of the docstring."""
    input_schema: dict[str, Any] | None
    """The JSON Schema of the input, in the form that `keyrun run --input` reads. None if the input
    has no declared type, as in graphs and machines."""
    result_schema: dict[str, Any] | None
    """The JSON Schema of the result, in the same form. None if it has no declared type."""


def workflows(registry: Registry, codec: PayloadCodec) -> tuple[WorkflowInfo, ...]:
    """Return the registered workflows, sorted by name and version."""
    each = sorted(registry, key=lambda workflow: (workflow.name, workflow.version))
    return tuple(_info(workflow, codec) for workflow in each)


def _info(workflow: Workflow[Any, Any], codec: PayloadCodec) -> WorkflowInfo:
    takes = workflow.input_type if workflow.takes_input else None
    about = " ".join((workflow.__doc__ or "").strip().partition("\n\n")[0].split())
    return WorkflowInfo(
        name=workflow.name,
        version=workflow.version,
        kind=WorkflowKind(workflow.kind),
        description=about or None,
        input_schema=_schema(takes, codec),
        result_schema=_schema(workflow.result_type, codec),
    )


def _schema(declared: Any, codec: PayloadCodec) -> dict[str, Any] | None:
    return None if declared is Any else codec.schema(declared)
