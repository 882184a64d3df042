"""Failures: the reason in one line, and the tracebacks."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from keyrun.cli.compensation import not_compensated

if TYPE_CHECKING:
    from keyrun import Failure

_WHERE = re.compile(r"^step '[^']*', attempt \d+ of \d+, after [\d.]+ s: ")


def reason_of(failure: "Failure") -> str:
    """Return the reason of a failure without its step and attempt, which stand beside it."""
    left = not_compensated(failure)
    return (f"{left} not compensated; " if left else "") + _WHERE.sub("", failure.reason)


def tracebacks(failure: "Failure | None") -> Iterator[str]:
    """Return the tracebacks of a failure and of the failures that caused it."""
    while failure is not None:
        if failure.traceback:
            yield failure.traceback.rstrip()
        failure = failure.cause
