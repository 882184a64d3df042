"""Serving: the actor of a key, which drives the runs of the key's line one after the other."""

from keyrun.actors import Actor
from keyrun.runtime.execution.driver import drive
from keyrun.runtime.queue.key_queue import Line
from keyrun.runtime.user_errors import is_user_error
from keyrun.runtime.values import State

_QUARANTINED = State.QUARANTINED  # to look it up takes as long as a call


class LineActor(Actor["Line", None]):
    """The actor of a key: it drives the runs of the key's line, one after the other."""

    __slots__ = ()

    async def receive(self, line: Line) -> None:
        """Go on until there is no run, or the first is held."""
        engine = line.engine
        again = crashed = False
        try:
            while not engine.draining:
                if line.calls:
                    served = await engine.reception.serve(line)
                    if not served:
                        again = served is None
                        return
                    if line.idle:
                        engine.forget_line(line)
                        return
                run = line.head or line.fresh() or await line.next()
                if run is None:
                    if line.calls and line.sleeper is None:
                        continue
                    engine.forget_line(line)
                    return
                if line.recovered:
                    line.tell_recovered(run)
                if run.standing.state is _QUARANTINED:
                    return
                if line.entering:
                    # Until it asks for a step: what else it waits for must keep nobody out.
                    engine.suspension.callback = line.entered
                ended = await drive(run)
                engine.suspension.callback = None
                if run.spent:
                    engine.actors.renew_scope()
                if ended is False:
                    return
                if ended:
                    line.leave(run)
                    if line.idle and not (run.spent or engine.draining):
                        engine.forget_line(line)
                        return
                if run.spent:
                    again = True
                    return
        except BaseException as error:
            if not is_user_error(error):
                raise
            crashed = await engine.crashes.crashed(line, error)
            if crashed and isinstance(error, Exception):
                raise
            if crashed:
                # Supervision would take some of these for the end of the runtime.
                raise RuntimeError("serving a key failed") from error
        finally:
            # After a crash its actor still has what woke it, and needs no further call.
            if crashed:
                line.entered()
            else:
                line.rest()
            if again:
                line.wake()
