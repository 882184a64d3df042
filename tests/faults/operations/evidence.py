"""Evidence: what happened, in the order in which it happened."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, NamedTuple

import attrs
import trio

from keyrun import RunOutcome, RunStatus, current_step
from keyrun.storage import StoreError


@attrs.define(eq=False)
class Call:
    """A call of a client, with its positions in the log."""

    op: str
    about: str
    value: Any
    called: int
    answered: float = inf
    """Where the answer is in the log; never, if the process was gone before."""
    at: float = inf
    """When it was answered."""
    answer: Any = None
    error: Exception | None = None

    @property
    def known(self) -> bool:
        """Whether the client learned what happened."""
        return self.answered < inf and not isinstance(self.error, StoreError)

    @property
    def succeeded(self) -> bool:
        return self.known and self.error is None

    def __repr__(self) -> str:
        said = repr(self.error if self.error is not None else self.answer)
        value = "" if self.value is None else f", {self.value!r}"
        asked = f"[{self.called}] {self.op}({self.about!r}{value})"
        return f"{asked} -> [{self.answered}] {said}" if self.known else f"{asked} -> ?"


class Effect(NamedTuple):
    """Something that a step did: it began, completed, was cut off, or compensated another."""

    position: int
    kind: str
    run_id: str
    key: str
    step: str
    at: float


class End(NamedTuple):
    """What the hook was told."""

    position: int
    outcome: RunOutcome


class Evidence:
    """What happened, with one numbering for all of it, and what steps depend on."""

    def __init__(self) -> None:
        self.position = 0
        self.calls: list[Call] = []
        self.effects: list[Effect] = []
        self.ends: list[End] = []
        self.results: list[tuple[int, str, Any]] = []
        """What `result()` gave: a value or an error."""
        self.sessions: list[int] = []
        """Where sessions end."""
        self.statuses: dict[str, RunStatus | None] = {}
        """How the runs ended."""
        self.wrong: list[str] = []
        self.broken = False
        """Whether the code of brittle runs contradicts their journals."""
        self.sick = True
        """Whether `fragile` fails."""

    def next(self) -> int:
        """The next position."""
        self.position += 1
        return self.position

    def effect(self, kind: str, name: str) -> None:
        """A step did something."""
        here, at = current_step(), trio.current_time()
        self.effects.append(Effect(self.next(), kind, here.run_id, here.key, name, at))

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A step: it begins, and it completes or is cut off."""
        self.effect("begin", name)
        try:
            yield
        except BaseException:
            self.effect("cut", name)
            raise
        self.effect("complete", name)


class Current:
    """Where the steps of the script that is being played find the evidence."""

    evidence: Evidence


current = Current()
