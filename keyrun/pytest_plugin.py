"""The fixtures of Keyrun for pytest. pytest loads this module in every project that has Keyrun
installed, so it imports the runtime only in tests that use a fixture."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from keyrun.testing import AsyncioHost, SyncHost


@pytest.fixture
def keyrun_asyncio() -> "AsyncioHost":
    """Virtual time for a test on asyncio, and test runtimes: see keyrun.testing.AsyncioHost."""
    from keyrun.testing import AsyncioHost

    return AsyncioHost()


@pytest.fixture
def keyrun_sync() -> "SyncHost":
    """Virtual time for a test that is a plain function, and test runtimes: see
    keyrun.testing.SyncHost."""
    from keyrun.testing import SyncHost

    return SyncHost()
