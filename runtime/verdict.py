"""Verdicts: how a workflow itself can judge its run, or have it go on."""

import attrs


@attrs.frozen
class CancelVerdict:
    """The run is cancelled by its own workflow, which wins over a cancel from outside."""

    reason: str


@attrs.frozen
class Continuation:
    """The run goes on with another input, as it is stored, and an empty journal."""

    input: bytes
