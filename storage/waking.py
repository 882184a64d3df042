"""Waking: what a task is told that waited, for a commit or for something that one brought."""

from collections.abc import AsyncGenerator, Generator
from typing import Generic, TypeVar

from outcome import Outcome

T = TypeVar("T")
S = TypeVar("S")


class Told(Outcome[T], Generic[T]):
    """A value, as often as anybody wants it. Trio's own outcomes are made for each task that is
    woken and can be looked at once, which takes a fifth of the time of waking it."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def unwrap(self) -> T:
        """The value."""
        return self.value

    def send(self, gen: Generator[S, T, object]) -> S:
        """Give it to a generator."""
        return gen.send(self.value)

    async def asend(self, agen: AsyncGenerator[S, T]) -> S:
        """Give it to an asynchronous generator."""
        return await agen.asend(self.value)


GO_ON = Told(None)
"""For those who have nothing to learn but that they may go on."""
