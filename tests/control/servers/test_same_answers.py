"""The tests of the HTTP API, against `keyrun serve` and against the API mounted in FastAPI.

They are the functions of the modules below. `conftest.py` replaces what they run against.
"""

import inspect
from types import CodeType
from typing import Any

from tests.control import test_batches, test_bulk, test_http, test_streams

MODULES = (test_batches, test_bulk, test_http, test_streams)
IN_MEMORY = {
    # They configure the application.
    "test_a_line_that_is_too_long_ends_the_batch",
    "test_a_condition_of_the_application_makes_it_not_ready",
    "test_paths_are_below_the_path_that_the_application_is_mounted_at",
    # They name the caller, or expect the end of a stream in the same pass of the loop.
    "test_the_history_of_a_run_is_read_in_pages",
    "test_the_progress_of_a_run_is_streamed_until_its_end",
    # They wait for retries, or submit at a time that they know.
    "test_failed_runs_are_redriven_and_forgotten",
    "test_a_time_is_in_rfc_3339_or_in_seconds",
    # It calls the application after the server has ended.
    "test_a_closed_runtime_says_when_to_come_again",
}
BELOW = {
    *("monkeypatch", "caplog"),
    *("Exchange", "api", "statistics", "sleep", "current_time", "guard", "_partition", "busy"),
}
"""What a test uses that looks behind the HTTP API, handles a request piece by piece, or measures
virtual time. Such a test runs in memory only."""


def names_in(code: CodeType) -> set[str]:
    """The names that a function uses, with those of its inner functions."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    keywords = {name for each in code.co_consts if isinstance(each, tuple) for name in each}
    names = {*code.co_names, *code.co_varnames, *keywords}
    return names.union(*map(names_in, inner))


def runs_on_a_server(test: Any) -> bool:
    return test.__name__ not in IN_MEMORY and not BELOW & names_in(test.__code__)


SHARED = {
    name: test
    for module in MODULES
    for name, test in vars(module).items()
    if name.startswith("test_") and inspect.iscoroutinefunction(test) and runs_on_a_server(test)
}
globals().update(SHARED)


def test_most_tests_of_the_api_run_here() -> None:
    assert len(SHARED) >= 30
    named = {name for module in MODULES for name in vars(module)}
    assert named >= IN_MEMORY, "a test was renamed or removed"
