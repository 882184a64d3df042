"""Failure ports: leave a node by a port, or fail it if no edge takes that port."""

from typing import Any

from keyrun.runtime.errors import SignalTimeout
from keyrun.runtime.graphs.node import FailurePort
from keyrun.runtime.texts import type_of
from keyrun.runtime.values import Failure, FailureKind

TIMEOUT = "timeout"
"""The port of a node whose wait has timed out."""


def failed_by(
    port: str,
    output: Any,
    node: str,
    error: Exception,
    *,
    kind: FailureKind = FailureKind.PERMANENT_ERROR,
    elapsed: float | None = None,
) -> FailurePort:
    """Return the port by which `node` leaves because of `error`. If no edge takes the port, the
    node has failed, and it is not retried."""
    failure = Failure(
        kind=kind,
        reason=str(error),
        step=node,
        attempt=1,
        error_type=type_of(error),
        elapsed=elapsed,
    )
    return FailurePort(port, output, failure=failure)


def timed_out(output: Any, node: str, error: SignalTimeout, timeout: float | None) -> FailurePort:
    """Return the port `timeout` of `node`, whose wait has lasted `timeout` seconds."""
    return failed_by(TIMEOUT, output, node, error, kind=FailureKind.STEP_TIMEOUT, elapsed=timeout)
