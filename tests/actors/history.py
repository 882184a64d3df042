"""What happened in a random world of actors, and what must be true of it afterwards."""

import math
from collections import Counter, defaultdict
from typing import Any

import attrs

from keyrun.actors import FailedMessage, Supervision


@attrs.define(eq=False)
class Letter:
    """One message of the game and what became of it. Times are ticks of the history."""

    key: str
    crashes: int
    steps: list[str]
    called: int = 0
    returned: float = math.inf
    accepted: bool | None = None
    """None if its sender can't know."""
    handled: int = 0
    dead: int = 0


@attrs.define
class History:
    """Everything that happened, in order."""

    supervision: Supervision
    events: list[tuple[str, str, Any, int]] = attrs.Factory(list)
    letters: list[Letter] = attrs.Factory(list)
    running: Counter[str] = attrs.Factory(Counter)
    wrong: list[str] = attrs.Factory(list)

    def tick(self) -> int:
        self.events.append(("tick", "", None, 0))
        return len(self.events)

    def note(self, kind: str, key: str, what: Any, actor: int = 0) -> None:
        self.events.append((kind, key, what, actor))

    def check(self) -> list[str]:
        """What is wrong with it, in words."""
        for letter in self.letters:
            self._check_fate(letter)
        begins: dict[str, list[tuple[str, Any, int]]] = defaultdict(list)
        for kind, key, what, actor in self.events:
            if kind != "tick":
                begins[key].append((kind, what, actor))
        for key, events in begins.items():
            self._check_order(key, [w for kind, w, _ in events if kind == "begin"])
            self._check_retries(key, events)
            self._check_actors(key, events)
        return self.wrong

    def _check_fate(self, letter: Letter) -> None:
        ends = letter.handled + letter.dead
        expected = {True: (1,), False: (0,), None: (0, 1)}[letter.accepted]
        if ends not in expected:
            self.wrong.append(f"accepted={letter.accepted} but ended {ends} times: {letter}")

    def _check_order(self, key: str, begun: list[Letter]) -> None:
        latest = 0
        for letter in dict.fromkeys(begun):
            if letter.returned < latest:
                self.wrong.append(f"{key}: overtaken by one told later: {letter}")
            latest = max(latest, letter.called)

    def _check_retries(self, key: str, events: list[tuple[str, Any, int]]) -> None:
        owed: Letter | None = None
        for kind, what, _ in events:
            if kind == "begin":
                if owed is not None and what is not owed:
                    self.wrong.append(f"{key}: {what} went before the retry of {owed}")
                owed = None
            elif kind == "crash" and self.supervision.failed_message is FailedMessage.RETRY:
                owed = what
            elif kind == "dead" and what is owed:
                owed = None

    def _check_actors(self, key: str, events: list[tuple[str, Any, int]]) -> None:
        """A message is handled by the actor of the one before, unless that one ended."""
        current = 0
        for kind, what, actor in events:
            if kind == "start":
                if current:
                    self.wrong.append(f"{key}: actor {actor} started while {current} lived")
                current = actor
            elif kind == "begin" and actor != current:
                self.wrong.append(f"{key}: {what} handled by {actor}, not by {current}")
            elif kind in ("crash", "end"):
                current = 0
