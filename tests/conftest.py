"""What holds for all tests."""

import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
UNCOUNTED = [
    HERE / "faults",
    HERE / "actors/test_history.py",
    HERE / "flows/test_meter.py",
    HERE / "runtime/graphs/test_random_graphs.py",
    HERE / "runtime/graphs/test_recovery.py",
    HERE / "runtime/recovery/test_crash_points.py",
    HERE / "runtime/run/test_continue_as.py",
    HERE / "storage/test_hostile_payload.py",
]
"""What goes through many worlds or turns reaches, many times over, lines that others reach."""

# How long an example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

if os.environ.get("KEYRUN_TEST_STORE") == "postgres":
    from tests import on_postgres

    on_postgres.install()

# A shell starts a job in the background with SIGINT ignored, and tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Which lines are covered is not counted where that takes longer than the tests themselves.
    (The mark `no_cover` is made for this and does nothing in the processes of pytest-xdist.)"""
    if not any(item.path.is_relative_to(each) for each in UNCOUNTED):
        return (yield)
    here, elsewhere = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(here)
        threading.settrace(elsewhere)


def pytest_sessionfinish() -> None:
    """Stop the PostgreSQL server of this process, if its tests have started one."""
    postgres = sys.modules.get("tests.postgres")
    if postgres is not None:
        postgres.stop_all()
