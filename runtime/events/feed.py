"""The feed: tells those who listen what happened, after the commit that makes it true.

Events are put together while their records are staged and go out when those are durable, in the
order of the commits and of staging within one. Of a commit that failed nothing is told. While
nobody listens `engine.feed` is None, which is all that the engine looks at.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from keyrun.runtime.events.types import Brief, Event, run_of

if TYPE_CHECKING:
    from keyrun.storage.group import Group
    from keyrun.storage.group_commit import GroupCommit

Place = tuple[list[Event | Brief], int]
"""Where an event stands until its commit is durable."""


class Listener(Protocol):
    """What is told of events: of one run if `run_id` is not None."""

    run_id: str | None

    def take(self, events: Sequence[Event | Brief]) -> None:
        """These happened, in this order."""

    def end(self) -> None:
        """Nothing will happen any more."""


class Feed:
    """Everybody who listens, and what they will be told. `switch` is called with the feed when
    somebody begins to listen, and with None when nobody does any more."""

    def __init__(
        self,
        commits: "GroupCommit",
        wall: Callable[[], float],
        switch: "Callable[[Feed | None], None]",
    ) -> None:
        self.commits = commits
        self.wall = wall
        self._switch = switch
        self._listeners: dict[Listener, None] = {}
        """Those who listen to all runs."""
        self._by_run: dict[str, dict[Listener, None]] = {}
        self.group: Group | None = None
        """The group that events were last told with."""
        self.staged: list[Event | Brief] = []
        """What happened with the group."""

    def add(self, listener: Listener) -> None:
        """Tell `listener`, too."""
        if listener.run_id is None:
            self._listeners[listener] = None
        else:
            self._by_run.setdefault(listener.run_id, {})[listener] = None
        self._switch(self)

    def remove(self, listener: Listener) -> None:
        """Tell `listener` nothing any more."""
        self._listeners.pop(listener, None)
        if listener.run_id is not None:
            of_run = self._by_run.get(listener.run_id, {})
            of_run.pop(listener, None)
            if not of_run:
                self._by_run.pop(listener.run_id, None)
        if not self._listeners and not self._by_run:
            self._switch(None)
            self.group = None
            self.staged = []

    def close(self) -> None:
        """Nothing will happen any more: let them read what they have, and end."""
        for listener in self._listeners:
            listener.end()
        for listeners in self._by_run.values():
            for listener in listeners:
                listener.end()

    def tell(self, group: "Group | None", event: Event) -> Place:
        """Tell of something when `group` is durable, at once if that is so or if there is none."""
        if group is None or group.durable:
            self._publish([event])
            return [event], 0
        if group is not self.group:
            self.follow(group)
        staged = self.staged
        staged.append(event)
        return staged, len(staged) - 1

    def follow(self, group: "Group | None") -> None:
        """What is staged from now on is told when `group` is durable."""
        assert group is not None
        self.group = group
        self.staged = []
        group.when_durable(self._publish, self.staged)

    def _publish(self, staged: Sequence[Event | Brief]) -> None:
        if not self._listeners and not self._by_run:
            return
        for listener in self._listeners:
            listener.take(staged)
        if self._by_run:
            for event in staged:
                for listener in self._by_run.get(run_of(event), ()):
                    listener.take((event,))

    def amend(self, place: Place, event: Event) -> bool:
        """Tell of `event` instead of what stands at a place. Says whether it is not too late."""
        staged, at = place
        if staged is not self.staged or self.group is not self.commits.open_group():
            return False
        staged[at] = event
        return True
