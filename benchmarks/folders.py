"""Where benchmarks keep their stores."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def folder() -> Iterator[Path]:
    """A directory on the disk that holds the sources: /tmp may be memory."""
    with TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as path:
        yield Path(path)
