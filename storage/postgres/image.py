"""The image: the records that reads show, in LMDB without syncs.

The image is in a temporary folder that has no name: it is removed as soon as it is open, so a
killed process leaves nothing behind. It is filled from the database at each open.

A commit is prepared in the image while the database works, and shown when the database has
answered. No read can see it before that.
"""

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb

from keyrun.storage import writer
from keyrun.storage.batch import Tables
from keyrun.storage.committer import failure
from keyrun.storage.errors import StoreClosed
from keyrun.storage.lmdb_reads import LmdbReads

MAP_SIZE = 1 << 36


class Image:
    """The records of one open store. `place` names the database in errors."""

    def __init__(self, place: str, disowned: Callable[[], StoreClosed]) -> None:
        self._parent = tempfile.gettempdir()
        folder = Path(tempfile.mkdtemp(prefix="keyrun-image-"))
        try:
            self._environment = writer.open_environment(str(folder), map_size=MAP_SIZE, sync=False)
        except (lmdb.Error, OSError) as error:
            raise failure(*writer.explain(error, self._parent)) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._writer = writer.Writer(self._environment)
        self._prepared: Any = None
        self.reads = LmdbReads(
            self._environment,
            self._writer.databases,
            place=place,
            disowned=disowned,
            are_complete=True,
        )
        """The records."""

    def prepare(self, tables: Tables) -> None:
        """Write the records of a commit, which no read shows before `show`."""
        try:
            self._prepared = self._writer.prepare(tables)
        except Exception as error:
            raise failure(*writer.explain(error, self._parent)) from error

    def show(self, tables: Tables) -> None:
        """Let reads show the commit that was prepared, unless they do already."""
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return
        try:
            self._writer.finish(prepared, tables)
        except Exception as error:
            raise failure(*writer.explain(error, self._parent)) from error

    def drop(self) -> None:
        """Forget a commit that was prepared and failed."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.abort()

    def fill(self, table: str, records: list[tuple[bytes, bytes]]) -> None:
        """Add records of one table, in the order of their keys."""
        try:
            self._writer.append(table, records)
        except Exception as error:
            raise failure(*writer.explain(error, self._parent)) from error

    def apply(self, tables: Tables) -> None:
        """Write records and show them."""
        self.prepare(tables)
        self.show(tables)

    def close(self) -> None:
        """Close the image, which removes it."""
        self.drop()
        self.reads.close()

    def forked(self) -> None:
        """Leave everything to the parent process."""
        with suppress(lmdb.Error):
            self.reads.forked()
