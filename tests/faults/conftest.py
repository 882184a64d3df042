"""What the tests of power loss, and others of what is on a disk, share."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.faults import tracing

MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that records what a process does to its files."""
    return tracing.build(tmp_path_factory.mktemp("iotrace"))


@pytest.fixture
def place() -> Iterator[Path]:
    """Where images of a disk are laid out, or what needs no disk to be tested: in memory where
    there is such a place."""
    folder = Path(mkdtemp(prefix="keyrun-power-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
