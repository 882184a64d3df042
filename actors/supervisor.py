"""The supervisor: restart, stop or quarantine a cell whose actor crashed, as `Supervision` says.

It works on a cell that a worker holds, and it never waits. A cell in backoff or quarantine holds
neither a worker nor a task.
"""

import logging
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import trio

from keyrun.actors.cell import BACKOFF, QUARANTINED, Cell, Envelope, RestartHistory
from keyrun.actors.dead_letters import DeadLetters
from keyrun.actors.directory import Directory
from keyrun.actors.due_cells import DueCells
from keyrun.actors.errors import ActorFailed, ActorStopped, KeyQuarantined, logged, shown
from keyrun.actors.pool import Pool
from keyrun.actors.supervision import Directive, FailedMessage, Supervision

logger = logging.getLogger("keyrun.actors")


class Supervisor:
    """Handles crashed actors, and knows the cells in backoff and quarantine."""

    def __init__(
        self,
        supervision: Supervision,
        pool: Pool,
        directory: Directory,
        dead_letters: DeadLetters,
        on_quarantine: Callable[[Any, BaseException], object] | None = None,
    ) -> None:
        self._supervision = supervision
        self._on_quarantine = on_quarantine
        self._pool = pool
        self._directory = directory
        self._dead_letters = dead_letters
        self._due = DueCells(pool, self._resume)
        self.quarantined: dict[Cell, None] = {}

    def crashed(self, cell: Cell, item: Any, error: BaseException) -> None:
        """Handle a crash of the actor while it handled `item`.

        Afterwards the cell is in backoff or quarantine, or still bound if it can continue at once.
        """
        mailbox = cell.mailbox
        assert mailbox is not None
        started = cell.actor is not None
        cell.actor = None
        if self._supervision.directive_for(error) is Directive.STOP:
            _log(logging.INFO, error, "actor of key %s crashed and is stopped", shown(cell.key))
            if isinstance(item, Envelope):
                item.settle(failure=ActorFailed(cell.key, error))
            mailbox.appendleft(item)
            self._give_up(cell, error)
            return
        crashes = cell.crashes
        if crashes is None:
            crashes = cell.crashes = RestartHistory()
        crashes.error = error
        # If the actor could not start, the message is not the reason.
        if started and self._supervision.failed_message is FailedMessage.DEAD_LETTER:
            self._dead_letters.deliver(cell.key, [item], error)
        else:
            mailbox.appendleft(item)
        now = trio.current_time()
        crashes.forget(now - self._supervision.window)
        if len(crashes.times) >= self._supervision.max_restarts:
            self._quarantine(cell, error)
            return
        delay = self._supervision.delay_for(cell.key, len(crashes.times) + 1)
        crashes.add(now, delay)
        said = "actor of key %s crashed: restart in %g s"
        _log(logging.INFO, error, said, shown(cell.key), delay)
        if delay > 0:
            cell.state = BACKOFF
            self._pool.delayed.add(cell)
            self._due.add(now + delay, cell)

    def release(self, cell: Cell) -> None:
        """Let a quarantined cell continue as if it had never crashed."""
        del self.quarantined[cell]
        assert cell.crashes is not None
        cell.crashes.times = []
        self._directory.settle(cell)

    def hasten(self) -> None:
        """End every backoff."""
        self._due.hasten()

    def stop(self, cell: Cell) -> None:
        """Give up a quarantined cell with its mailbox."""
        del self.quarantined[cell]
        assert cell.crashes is not None
        self._give_up(cell, cell.crashes.error)
        self._directory.settle(cell)

    def _quarantine(self, cell: Cell, error: BaseException) -> None:
        assert cell.mailbox is not None
        key = shown(cell.key)
        _log(
            logging.ERROR,
            error,
            "key %s is quarantined after %d restarts within %g s: release(%s) lets it continue",
            key,
            self._supervision.max_restarts,
            self._supervision.window,
            key,
        )
        if any(isinstance(item, Envelope) and item.is_stop for item in cell.mailbox):
            # A caller of `stop` would wait for a release that may never come.
            self._give_up(cell, error)
            return
        cell.state = QUARANTINED
        self.quarantined[cell] = None
        self._directory.fail_asks(cell, lambda accepted: self.refusal(cell, accepted=accepted))
        if self._on_quarantine is not None:
            try:
                copy_context().run(self._on_quarantine, cell.key, error)
            except Exception:
                logger.exception("on_quarantine failed for key %s", key)

    def refusal(self, cell: Cell, *, accepted: bool = False) -> KeyQuarantined:
        """Return the error for a call of `ask` on a quarantined cell."""
        cause = None if cell.crashes is None else cell.crashes.error
        return KeyQuarantined(cell.key, cause, accepted=accepted)

    def _give_up(self, cell: Cell, error: BaseException | None) -> None:
        cell.crashes = None
        items = self._directory.take(cell)
        self._dead_letters.deliver(cell.key, items, ActorStopped(cell.key, error))

    def _resume(self, cell: Cell) -> None:
        self._pool.delayed.remove(cell)
        self._directory.settle(cell)
        self._pool.signal_quiet()


def _log(level: int, error: BaseException, message: str, *args: Any) -> None:
    """Log an error. Ignore exceptions of the error itself and of logging handlers."""
    try:
        logger.log(level, message, *args, exc_info=logged(error))
    except KeyboardInterrupt:
        raise
    except BaseException:
        return
