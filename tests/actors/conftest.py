import pytest

from tests.actors.scripted import World


@pytest.fixture
def world() -> World:
    """What scripted actors do is written down here."""
    return World()
