"""Verdicts: how a workflow itself can judge its run."""

import attrs


@attrs.frozen
class CancelVerdict:
    """The run is cancelled by its own workflow, which wins over a cancel from outside."""

    reason: str
