"""Calling: what a runtime offers to those who call entities."""

from typing import TYPE_CHECKING, Any, TypeVar, cast

from keyrun.actors import checks
from keyrun.runtime.admission import check_key
from keyrun.runtime.entities.entity import Proxy

if TYPE_CHECKING:
    from keyrun.runtime.engine import Engine

E = TypeVar("E")


class Calling:
    """The part of a runtime that calls methods of entities."""

    _engine: "Engine"

    async def call(
        self,
        entity: type,
        key: str,
        method: str,
        /,
        *args: Any,
        request_id: str | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a method of the entity under a key, in order with what else the key does, and
        return its answer when what it changed is durable.

        What it raises comes out here, and then nothing is changed. With a `request_id` the answer
        is kept, for as long as ended runs are: the same call again gives it without running the
        method. An error is kept, too, and raised as `CallFailed`, but for `TransientError` and
        `CallTimeout`. `timeout` is for the method, not for the wait before it. A caller that goes
        away takes back a call that has not begun; one that has is finished.
        """
        kind, limit = self._engine.reception.known(entity)
        if timeout is not None:
            checks.positive("timeout", timeout)
        return await self._engine.reception.call(
            kind,
            check_key(key),
            kind.method(method),
            limit if timeout is None else timeout,
            request_id,
            *args,
            **kwargs,
        )

    def entity(
        self,
        entity: type[E],
        key: str,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> E:
        """What stands for the entity under a key: `await rt.entity(Account, key).deposit(10)` is a
        call, and type checkers know it. A `request_id` is for one call; ask for another of these
        for the next."""
        reception = self._engine.reception
        kind, limit = reception.known(entity)
        if timeout is not None:
            checks.positive("timeout", timeout)
            limit = timeout
        return cast(E, Proxy(reception.call, kind, check_key(key), limit, request_id))
