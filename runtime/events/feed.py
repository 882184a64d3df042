"""The feed: publishes events after the commit that makes them true.

Events are built while their records are staged. They are published when those records are durable,
in the order of the commits and of staging within one commit. The events of a commit that failed are
never published. While there is no listener, `partition.feed` is None, so no event is built.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from keyrun.runtime.events.types import Brief, Event, run_of

if TYPE_CHECKING:
    from keyrun.storage.group import Group
    from keyrun.storage.group_commit import GroupCommit

Place = tuple[list[Event | Brief], int]
"""The list and the index of an event until its commit is durable."""


class Listener(Protocol):
    """Receives events: those of one run if `run_id` is not None, otherwise all."""

    run_id: str | None

    def take(self, events: Sequence[Event | Brief]) -> None:
        """Receive events, in the order in which they happened."""

    def end(self) -> None:
        """Receive no more events, because the runtime closes."""


class Subscribers:
    """The listeners of a process. They receive the events of all its partitions."""

    def __init__(self) -> None:
        self._listeners: dict[Listener, None] = {}
        """The listeners to all runs."""
        self._by_run: dict[str, dict[Listener, None]] = {}
        self._feeds: dict[Feed, None] = {}

    def attach(self, feed: "Feed") -> None:
        """Receive the events of one more partition."""
        self._feeds[feed] = None
        feed.switch(self._wanted)

    def detach(self, feed: "Feed") -> None:
        """Receive no more events of a partition, which is closed."""
        self._feeds.pop(feed, None)

    def add(self, listener: Listener) -> None:
        """Pass events to `listener` as well."""
        if listener.run_id is None:
            self._listeners[listener] = None
        else:
            self._by_run.setdefault(listener.run_id, {})[listener] = None
        self._switch()

    def remove(self, listener: Listener) -> None:
        """Pass no more events to `listener`."""
        self._listeners.pop(listener, None)
        if listener.run_id is not None:
            of_run = self._by_run.get(listener.run_id, {})
            of_run.pop(listener, None)
            if not of_run:
                self._by_run.pop(listener.run_id, None)
        self._switch()

    @property
    def _wanted(self) -> bool:
        return bool(self._listeners or self._by_run)

    def _switch(self) -> None:
        wanted = self._wanted
        for feed in self._feeds:
            feed.switch(wanted)

    def close(self) -> None:
        """End all listeners, because the runtime closes."""
        for listener in self._listeners:
            listener.end()
        for listeners in self._by_run.values():
            for listener in listeners:
                listener.end()

    def publish(self, events: Sequence[Event | Brief]) -> None:
        """Pass events to the listeners."""
        for listener in self._listeners:
            listener.take(events)
        if self._by_run:
            for event in events:
                for listener in self._by_run.get(run_of(event), ()):
                    listener.take((event,))


class Feed:
    """The events of one partition. `on_switch` is called with the feed when there is a first
    listener, and with None when the last subscriber is gone."""

    def __init__(
        self,
        subscribers: Subscribers,
        commits: "GroupCommit",
        wall: Callable[[], float],
        on_switch: "Callable[[Feed | None], None]",
    ) -> None:
        self.commits = commits
        self.wall = wall
        self._publish = subscribers.publish
        self._on_switch = on_switch
        self.group: Group | None = None
        """The group that the latest events are staged with."""
        self.staged: list[Event | Brief] = []
        """The events that are published when the group is durable."""

    def switch(self, wanted: bool) -> None:
        """Start or stop building events."""
        self._on_switch(self if wanted else None)
        if not wanted:
            self.group = None
            self.staged = []

    def emit(self, group: "Group | None", event: Event) -> Place:
        """Publish an event when `group` is durable, or at once if it is durable or None. Return the
        place of the event until then."""
        if group is None or group.durable:
            self._publish([event])
            return [event], 0
        if group is not self.group:
            self.follow(group)
        staged = self.staged
        staged.append(event)
        return staged, len(staged) - 1

    def follow(self, group: "Group | None") -> None:
        """Publish the events that are staged from now on when `group` is durable."""
        assert group is not None
        self.group = group
        self.staged = []
        group.when_durable(self._publish, self.staged)

    def amend(self, place: Place, event: Event) -> bool:
        """Replace the event at a place. Return False if it is too late."""
        staged, at = place
        if staged is not self.staged or self.group is not self.commits.open_group():
            return False
        staged[at] = event
        return True
