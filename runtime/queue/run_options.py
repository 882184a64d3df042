"""The options of calls that describe a run, for type checkers.

A call has one signature for workflows that take no input and one for workflows that require an
input. These types name the options once for both.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Required, TypedDict

from keyrun.runtime.limits import Limits
from keyrun.runtime.values import Priority


class RunOptions(TypedDict, total=False):
    """The options that all of these calls have."""

    key: Required[str]
    headers: Mapping[str, str] | None
    tags: Iterable[str]
    priority: Priority
    limits: Limits | None


class SubmitOptions(RunOptions, total=False):
    """The options of `rt.submit`."""

    run_id: str | None
    delay: float


class SubmitOrSignalOptions(RunOptions, total=False):
    """The options of `rt.submit_or_signal`."""

    run_id: Required[str]
    name: Required[str]
    payload: Any
    signal_id: str | None


class MemberOptions(RunOptions, total=False):
    """The options of `Member`."""

    member_id: str | None
    delay: float
