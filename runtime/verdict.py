"""Verdicts: how a workflow itself can judge its run, or have it go on."""

from typing import NamedTuple


class CancelVerdict(NamedTuple):
    """The run is cancelled by its own workflow, which wins over a cancel from outside."""

    reason: str


class Continuation(NamedTuple):
    """The run goes on with another input, as it is stored, and an empty journal."""

    input: bytes
