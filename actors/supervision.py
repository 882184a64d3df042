"""Supervision: the options that decide what happens to an actor that crashes.

Everything here is a pure function of the options and its arguments, so it can be tested without an
actor. `keyrun.actors.supervisor` applies the decisions.
"""

import enum
import hashlib
import math
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from keyrun.actors import checks
from keyrun.actors.errors import shown


class Directive(enum.Enum):
    """Decide what happens to an actor that crashed."""

    RESTART = "restart"
    """A new actor replaces it."""
    STOP = "stop"
    """It is dropped, and its mailbox becomes dead letters."""


class FailedMessage(enum.Enum):
    """Decide what happens to the message that crashed an actor which is restarted."""

    RETRY = "retry"
    """The new actor handles it again, before all other messages. If it crashes the actor every
    time, the key is quarantined."""
    DEAD_LETTER = "dead_letter"
    """It becomes a dead letter, and the new actor continues with the next message."""


def _frozen(directives: Mapping[type[BaseException], Directive]) -> Mapping[Any, Directive]:
    return MappingProxyType(dict(directives))


def _at_least(least: float) -> Any:
    return lambda _, field, value: checks.at_least(field.name, value, least)


@attrs.frozen(kw_only=True)
class Supervision:
    """Decide how an actor system handles crashes. If in doubt, use `Supervision()`.

    Restart number `n` within `window` seconds waits `base * factor ** (n - 1)` seconds, with
    `jitter` and at most `max_delay`. A crash after `max_restarts` restarts within `window` seconds,
    waits not counted, quarantines the key. A quarantined key keeps its mailbox until
    `ActorSystem.release`, and `ActorSystem.tell` can add messages. `ActorSystem.ask` raises
    `KeyQuarantined`.
    """

    directives: Mapping[type[BaseException], Directive] = attrs.field(
        factory=dict, converter=_frozen, hash=False
    )
    """The directive for each exception type. The most specific class counts. All other exceptions
    restart the actor. An exception group stops the actor if one of its exceptions does."""
    failed_message: FailedMessage = attrs.field(
        default=FailedMessage.RETRY, validator=attrs.validators.instance_of(FailedMessage)
    )
    """The fate of the message that crashed the actor."""
    base: float = attrs.field(default=0.1, validator=_at_least(0))
    """Seconds before the first restart."""
    factor: float = attrs.field(default=2.0, validator=_at_least(1))
    """The growth of the delay from one restart to the next."""
    max_delay: float = attrs.field(default=30.0, validator=_at_least(0))
    """The longest delay in seconds."""
    jitter: float = attrs.field(default=0.25, validator=_at_least(0))
    """The share by which a delay may differ either way, from 0 to 1."""
    max_restarts: int = attrs.field(default=5)
    """The number of restarts within the window before the key is quarantined."""
    window: float = attrs.field(default=60.0)
    """The seconds in which restarts count."""

    @directives.validator
    def _check_directives(self, _: object, value: Mapping[Any, Any]) -> None:
        for kind, directive in value.items():
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise TypeError(f"directives must be keyed by exception types, got {kind!r}")
            if not isinstance(directive, Directive):
                raise TypeError(f"directives[{kind.__name__}] must be a Directive: {directive!r}")

    @jitter.validator
    def _check_jitter(self, _: object, value: float) -> None:
        if value > 1:
            raise ValueError(f"jitter must be at most 1, got {value!r}")

    @max_restarts.validator
    def _check_max_restarts(self, _: object, value: int) -> None:
        checks.count("max_restarts", value, 0)

    @window.validator
    def _check_window(self, _: object, value: float) -> None:
        checks.positive("window", value)

    def directive_for(self, error: BaseException) -> Directive:
        """Return what happens after `error`."""
        if isinstance(error, BaseExceptionGroup):
            leaves = {self.directive_for(leaf) for leaf in error.exceptions}
            return Directive.STOP if Directive.STOP in leaves else Directive.RESTART
        for kind in type(error).__mro__:
            if kind in self.directives:
                return self.directives[kind]
        return Directive.RESTART

    def delay_for(self, key: Hashable, restart: int) -> float:
        """Return the seconds before restart number `restart` (from 1) of `key`.

        The jitter depends on the key and the number only. So keys that crash together restart at
        different times, and a test sees the same times in every run.
        """
        checks.count("restart", restart, 1)
        try:
            delay = self.base * self.factor ** (restart - 1)
        except OverflowError:
            delay = math.inf if self.base else 0.0
        seed = f"{restart}:{shown(key)}".encode(errors="backslashreplace")
        digest = hashlib.blake2b(seed, digest_size=8).digest()
        share = int.from_bytes(digest) / 2**63 - 1
        return min(delay * (1 + self.jitter * share), self.max_delay)
