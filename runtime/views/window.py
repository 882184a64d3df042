"""The window on a runtime: what happens, told as it happens, and how far each run is."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from keyrun.runtime.admission import check_run_id
from keyrun.runtime.views.reader import Reader
from keyrun.runtime.views.subscription import Events, check_kinds

if TYPE_CHECKING:
    from keyrun.runtime.engine import Engine
    from keyrun.runtime.views.watching import Watch


class Window(Reader):
    """The part of a runtime that only looks on."""

    _engine: "Engine"

    def __init__(self, engine: "Engine") -> None:
        super().__init__(engine.ledger, engine.reading, engine.wall)
        self._engine = engine

    def events(
        self,
        *,
        run_id: str | None = None,
        kinds: Iterable[str] | None = None,
        buffer: int = 1024,
    ) -> Events:
        """What happens from now on, of one run or of certain kinds if you say so:

            async with runtime.events() as events:
                async for event in events: ...

        Each event comes after the commit that makes it true, in the order of the commits. You
        never slow the runtime down: what comes while `buffer` events wait to be read is dropped,
        and counted in `events.dropped`."""
        engine = self._engine
        return Events(
            engine.listeners,
            engine.wall,
            run_id=None if run_id is None else check_run_id(run_id),
            kinds=check_kinds(kinds),
            buffer=buffer,
            check_open=engine.check_open,
        )

    def watch(self, run_id: str, *, interval: float = 0.2) -> "Watch":
        """How far a run is, at once and then whenever that has changed, until it has ended:
        async for progress in runtime.watch(run_id). It looks at most every `interval` seconds, and
        when the run ends. If you read slowly, you get the latest."""
        from keyrun.runtime.views.watching import Changes, Watch

        engine = self._engine
        changes = Changes(check_run_id(run_id), engine.listeners, engine.watched)
        engine.check_open()
        return Watch(run_id, self._ledger.find, self._survey.look, interval, changes)
