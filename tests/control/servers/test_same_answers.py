"""The tests of the HTTP API, against `keyrun serve` and against the API mounted in FastAPI.

They are the functions of the modules below. `conftest.py` replaces what they run against.
"""

import inspect
from typing import Any

from tests.control import test_batches, test_bulk, test_http, test_streams

MODULES = (test_batches, test_bulk, test_http, test_streams)
IN_MEMORY = {
    # They configure the application.
    "test_a_bulk_operation_requires_the_role_of_its_action",
    "test_a_body_that_is_too_large_is_not_read",
    "test_a_line_that_is_too_long_ends_the_batch",
    "test_a_condition_of_the_application_makes_it_not_ready",
    "test_paths_are_below_the_path_that_the_application_is_mounted_at",
    # They look into the engine.
    "test_each_line_is_a_run",
    "test_an_id_that_is_unknown_marks_a_gap",
    "test_a_subscriber_that_does_not_read_misses_events_and_is_told",
    "test_the_engine_builds_no_events_when_the_last_subscriber_has_left",
    "test_all_subscribers_share_one_subscription_and_one_text",
    # They name the caller, or expect the end of a stream in the same pass of the loop.
    "test_the_history_of_a_run_is_read_in_pages",
    "test_the_progress_of_a_run_is_streamed_until_its_end",
    # They wait for a long time, which is virtual in memory.
    "test_a_long_poll_returns_when_the_time_is_over",
    "test_a_slow_body_is_not_waited_for",
    "test_a_quiet_stream_has_a_heartbeat",
    "test_failed_runs_are_redriven_and_forgotten",
    "test_runs_of_a_batch_that_find_no_room_do_not_wait_one_after_the_other",
    "test_the_ends_of_a_group_are_streamed_also_if_the_first_comes_late",
    # They go on after the runtime has closed. `tests/control/test_front.py` does so with a server.
    "test_a_stream_ends_when_the_runtime_closes",
    "test_a_closed_runtime_says_when_to_come_again",
}
FIXTURES = {"monkeypatch", "caplog"}


def runs_on_a_server(test: Any) -> bool:
    return test.__name__ not in IN_MEMORY and not FIXTURES & {*inspect.signature(test).parameters}


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
