"""Serving: the actor of a key, which drives the runs of the key's line one after the other."""

from keyrun.actors import Actor
from keyrun.runtime.execution.driver import drive
from keyrun.runtime.queue.key_queue import KeyQueue
from keyrun.runtime.user_errors import is_user_error
from keyrun.runtime.values import State

_QUARANTINED = State.QUARANTINED  # to look it up takes as long as a call


class KeyActor(Actor["KeyQueue", None]):
    """The actor of a key: it drives the runs of the key's line, one after the other."""

    __slots__ = ()

    async def receive(self, queue: KeyQueue) -> None:
        """Go on until there is no run, or the first is held."""
        partition = queue.partition
        again = crashed = False
        try:
            while not partition.draining:
                if queue.calls:
                    served = await partition.dispatcher.serve(queue)
                    if not served:
                        again = served is None
                        return
                    if queue.idle:
                        partition.forget_line(queue)
                        return
                run = queue.head or queue.fresh() or await queue.next()
                if run is None:
                    if queue.calls and queue.sleeper is None:
                        continue
                    partition.forget_line(queue)
                    return
                if queue.recovered:
                    queue.tell_recovered(run)
                if run.standing.state is _QUARANTINED:
                    return
                if queue.entering:
                    # Until it asks for a step: what else it waits for must keep nobody out.
                    partition.suspension.callback = queue.entered
                ended = await drive(run)
                partition.suspension.callback = None
                if run.spent:
                    partition.actors.renew_scope()
                if ended is False:
                    return
                if ended:
                    queue.leave(run)
                    if queue.idle and not (run.spent or partition.draining):
                        partition.forget_line(queue)
                        return
                if run.spent:
                    again = True
                    return
        except BaseException as error:
            if not is_user_error(error):
                raise
            crashed = await partition.crashes.crashed(queue, error)
            if crashed and isinstance(error, Exception):
                raise
            if crashed:
                # Supervision would take some of these for the end of the runtime.
                raise RuntimeError("serving a key failed") from error
        finally:
            # After a crash its actor still has what woke it, and needs no further call.
            if crashed:
                queue.entered()
            else:
                queue.rest()
            if again:
                queue.wake()
