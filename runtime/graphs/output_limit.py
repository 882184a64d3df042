"""The allowance of a graph's run: how many bytes its nodes may give.

Outputs are kept in memory and read again whenever the run is driven again, so a run that gives too
much harms all others. What is too much is refused with its size; nothing is ever cut.
"""

from keyrun.runtime.errors import OutputTooLarge

MEBIBYTE = 1024 * 1024
OUTPUT = MEBIBYTE
"""Bytes that the output of one node may have, where nobody says anything else."""
RUN = 10 * MEBIBYTE
"""Bytes that the outputs of all nodes of a run may have together."""


class Allowance:
    """What is left for the steps of one run."""

    __slots__ = ("_each", "_total", "used")

    def __init__(self, each: int, total: int) -> None:
        self._each = each
        self._total = total
        self.used = 0

    def take(self, size: int, step: str) -> None:
        """Count an output that is about to be kept, or refuse it."""
        if size > self._each:
            raise OutputTooLarge(
                f"the output of {step!r} has {size:,} bytes, and the limit is {self._each:,}; "
                "store it elsewhere and return its location, or set max_output"
            )
        if self.used + size > self._total:
            raise OutputTooLarge(
                f"with {size:,} bytes from {step!r}, the outputs of this run have "
                f"{self.used + size:,} bytes, and the limit is {self._total:,}; store them "
                "elsewhere and return their locations, or set max_run_output"
            )
        self.used += size
