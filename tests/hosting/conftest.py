import pytest

from tests.hosting.hosts import HOSTS, Host


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest) -> Host:
    """Every kind of asyncio host."""
    return HOSTS[request.param]
