"""Output limits: how many bytes the outputs of a graph's nodes may have.

Outputs are kept in memory, and read again whenever the run is loaded. So a run with large outputs
would slow down all other runs. An output that is too large fails its node. Outputs are never cut.
"""

from keyrun.runtime.errors import OutputTooLarge

MEBIBYTE = 1024 * 1024
OUTPUT = MEBIBYTE
"""Bytes that the output of one node may have by default."""
RUN = 10 * MEBIBYTE
"""Bytes that the outputs of all nodes of a run may have together by default."""


class Allowance:
    """The bytes that the outputs of one run have used, and may use."""

    __slots__ = ("_each", "_total", "used")

    def __init__(self, each: int, total: int) -> None:
        self._each = each
        self._total = total
        self.used = 0

    def take(self, size: int, step: str) -> None:
        """Count an output that is about to be kept. Raise `OutputTooLarge` if it is too large."""
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
