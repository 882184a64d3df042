"""What a key queue and the backlog know of the calls of entity methods that wait in them."""

from typing import Protocol


class QueuedCall(Protocol):
    """A call that waits in the queue of its key until the runs before it have ended."""

    has_slot: bool
    """Whether the call holds a slot."""

    @property
    def number(self) -> int:
        """Return the admission number that comes next: runs with a smaller place go first."""

    @property
    def effects(self) -> bool:
        """Return whether the method may do more than change its state and return an answer."""

    @property
    def from_key(self) -> bool:
        """Return whether code that holds a key itself, a step or a method, made the call."""

    async def execute(self) -> bool:
        """Run the method. Return whether the actor can continue in its cancel scope."""

    def crash(self, error: BaseException) -> None:
        """Refuse the call because its execution raised `error`, which ends the actor."""

    def abandon(self) -> None:
        """Withdraw the call and let it fail, because the runtime is left."""
