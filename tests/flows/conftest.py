"""What the tests of flows share."""

from collections.abc import AsyncIterator

import pytest

from tests.flows.server import Server, serving


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server on 127.0.0.1."""
    async with serving() as server:
        yield server


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """127.0.0.1 is asked directly, whatever the machine is set to."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
