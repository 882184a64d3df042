"""The actor of a key: drives the runs of the key's queue one after the other."""

from typing import TYPE_CHECKING, Protocol

from keyrun.actors import Actor
from keyrun.runtime.execution.driver import drive
from keyrun.runtime.queue.key_queue import KeyQueue
from keyrun.runtime.texts import named
from keyrun.runtime.user_errors import is_user_error
from keyrun.runtime.values import State

if TYPE_CHECKING:
    from keyrun.runtime.queue.key_queues import KeyQueues

_QUARANTINED = State.QUARANTINED  # looking it up takes as long as a call


class EntityCalls(Protocol):
    """Serves the calls of entities."""

    async def serve(self, queue: KeyQueue) -> bool | None:
        """Serve the calls of a key. Return False if the key has to wait, and None if its actor
        has to look again later."""


class CrashHandler(Protocol):
    """Handles internal errors of a key's actor."""

    async def crashed(self, queue: KeyQueue, error: BaseException) -> bool:
        """Restore a key from the store after `error`. Return whether its actor restarts."""


class KeyActor(Actor[KeyQueue, None]):
    """The actor of a key."""

    __slots__ = ("_calls", "_crashes", "_queues")

    def __init__(self, queues: "KeyQueues", calls: EntityCalls, crashes: CrashHandler) -> None:
        self._queues = queues
        self._calls = calls
        self._crashes = crashes

    async def receive(self, queue: KeyQueue) -> None:
        """Drive runs until there is none, or until the first one is held."""
        partition = queue.partition
        again = crashed = False
        try:
            while not partition.draining:
                if queue.calls:
                    served = await self._calls.serve(queue)
                    if not served:
                        again = served is None
                        return
                    if queue.is_idle():
                        self._queues.drop(queue)
                        return
                run = queue.head or queue.take_fresh() or await queue.load_next()
                if run is None:
                    if queue.calls and queue.evicted_head is None:
                        continue
                    self._queues.drop(queue)
                    return
                if queue.recovered:
                    queue.emit_recovered(run)
                if run.status.state is _QUARANTINED:
                    return
                if queue.entering:
                    # If the run waits for anything but a slot, another key may be admitted.
                    partition.suspension.callback = queue.entered
                ended = await drive(run)
                partition.suspension.callback = None
                if run.scope_cancelled:
                    partition.renew_scope()
                if ended is False:
                    return
                if ended:
                    queue.remove_head(run)
                    if queue.is_idle() and not (run.scope_cancelled or partition.draining):
                        self._queues.drop(queue)
                        return
                if run.scope_cancelled:
                    again = True
                    return
        except BaseException as error:
            if not is_user_error(error):
                raise
            crashed = await self._crashes.crashed(queue, error)
            redaction = queue.partition.redaction
            if crashed and redaction.hides:
                # The supervisor of the actors logs the error as it is.
                said = f"the actor of a key crashed: {named(error, redaction)}"
                raise RuntimeError(said) from None
            if crashed and isinstance(error, Exception):
                raise
            if crashed:
                # Some of these exceptions would end the runtime.
                raise RuntimeError("the actor of a key crashed") from error
        finally:
            # After a crash, the actor still has the message that woke it.
            if crashed:
                queue.entered()
            else:
                queue.actor_left()
            if again:
                queue.wake()
