"""The page of the demo: shows its customers and orders in the browser while it works."""

from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

import lmdb
import trio

from keyrun.control.options import Control
from keyrun.errors import MissingExtra
from keyrun.extras import need
from keyrun.storage import StoreError

RETRY = 0.2
"""Seconds between two looks whether the service has made its store."""


def has_page() -> bool:
    """Return whether the packages of the page are installed."""
    with suppress(MissingExtra):
        for library in ("anycorn", "h11"):
            need(library, for_="the page of the demo", extra="control")
        return True
    return False


class DemoPage:
    """Serves the page from a thread while a block runs, also while the service is killed and starts
    again."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop = trio.Event()
        self._thread = Thread(target=self._run, daemon=True)
        self.address: str | None = None
        """The address to open, as soon as there is one."""

    def __enter__(self) -> Self:
        if has_page():
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread.ident is None:
            return
        while self._thread.is_alive():
            if self._token is not None:
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._stop.set)
            self._thread.join(0.05)

    def _run(self) -> None:
        trio.run(self._serve)

    async def _serve(self) -> None:
        from keyrun.control.roles import Role
        from keyrun.control.viewer import shown

        self._token = trio.lowlevel.current_trio_token()
        while not self._stop.is_set():
            with suppress(StoreError, lmdb.Error):
                # An order that somebody cancels would look like one that was lost.
                page = shown(self._store, Control(http="127.0.0.1:0"), role=Role.READ)
                async with page as (_, self.address):
                    await self._stop.wait()
            await trio.sleep(RETRY)
