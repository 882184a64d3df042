"""A store that the tests of the command line look at, made once."""

from pathlib import Path

import pytest

from tests.keyrun.cli import make_store


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with seven runs. Nobody may write to it."""
    return make_store(tmp_path_factory.mktemp("filled") / "store")
