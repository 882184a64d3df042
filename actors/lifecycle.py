"""The lifecycle of an actor: make, start, passivate and stop it.

It runs in the worker that holds the cell, so a hook never runs beside a handler of its key.
"""

import logging
from collections.abc import Callable
from typing import Any

from keyrun.actors.actor import Actor, overrides
from keyrun.actors.cell import Cell, Order
from keyrun.actors.errors import is_crash, shown

logger = logging.getLogger("keyrun.actors")


class Lifecycle:
    """Starts, passivates and stops actors."""

    def __init__(self, factory: Callable[[Any], Actor[Any, Any]]) -> None:
        self._factory = factory
        self.restarts = 0
        self.passivations = 0

    async def start(self, cell: Cell) -> Actor[Any, Any]:
        """Give the cell an actor. Every exception that leaves this counts as a crash."""
        actor = self._factory(cell.key)
        if not isinstance(actor, Actor):
            raise TypeError(f"factory({shown(cell.key)}) must return an Actor, got {shown(actor)}")
        crashes = cell.crashes
        if crashes is not None and crashes.error is not None:
            self.restarts += 1
            await actor.on_restart(crashes.error)
            crashes.error = None
        elif overrides(actor, "on_start"):
            await actor.on_start()
        cell.actor = actor
        return actor

    async def obey(self, cell: Cell, order: Order) -> None:
        """Carry out an order whose turn has come."""
        match order:
            case Order.STOP:
                await self._stop(cell)
            case Order.PASSIVATE:
                await self._passivate(cell)

    async def _stop(self, cell: Cell) -> None:
        if cell.actor is not None:
            try:
                await cell.actor.on_stop()
            except BaseException as error:
                if not is_crash(error):
                    raise
                logger.exception("on_stop of key %s failed", shown(cell.key))
        cell.actor = None
        cell.crashes = None

    async def _passivate(self, cell: Cell) -> None:
        assert cell.actor is not None
        try:
            await cell.actor.on_passivate()
        except BaseException as error:
            if not is_crash(error):
                raise
            logger.exception("on_passivate of key %s failed: the actor stays", shown(cell.key))
        else:
            self.passivations += 1
            cell.actor = None


def stops_silently(cell: Cell) -> bool:
    """Return whether the actor of an idle cell can be dropped without calling `on_stop`."""
    return cell.actor is None or not overrides(cell.actor, "on_stop")


def passivates_silently(cell: Cell) -> bool:
    """Return whether the actor of an idle cell can be dropped without calling `on_passivate`, which
    calls `on_stop` by default."""
    return stops_silently(cell) and (
        cell.actor is None or not overrides(cell.actor, "on_passivate")
    )
