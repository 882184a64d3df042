"""What happens to an actor that crashes: a value that the user configures.

Everything here is a pure function of the value and its arguments, so a policy can be tested
without running an actor. `keyrun.actors.supervisor` carries it out.
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
    """What to do with an actor that raised."""

    RESTART = "restart"
    STOP = "stop"


class FailedMessage(enum.Enum):
    """What to do with the message that crashed a restarted actor.

    `RETRY` keeps it at the head of the mailbox: nothing is lost and nothing overtakes it, and a
    message that always crashes ends in quarantine. `DEAD_LETTER` gives it up and goes on with
    the next.
    """

    RETRY = "retry"
    DEAD_LETTER = "dead_letter"


def _frozen(directives: Mapping[type[BaseException], Directive]) -> Mapping[Any, Directive]:
    return MappingProxyType(dict(directives))


def _at_least(least: float) -> Any:
    return lambda _, field, value: checks.at_least(field.name, value, least)


@attrs.frozen(kw_only=True)
class Supervision:
    """How crashes are answered. If in doubt, use `Supervision()`.

    `directives` says what to do per exception type; the most specific class wins, and what is
    not named restarts. An exception group stops the actor if any error in it would. Restarts
    wait `base * factor ** (n - 1)` seconds, `n` counting the restarts within `window`, give or
    take the share `jitter`, and never more than `max_delay`. A crash after `max_restarts`
    restarts within `window` seconds, not counting the waits, puts the key into quarantine,
    where it keeps its mailbox until `release` and takes more with `tell`; whoever waits for an
    answer of it, and who asks from then on, gets `KeyQuarantined`.
    """

    directives: Mapping[type[BaseException], Directive] = attrs.field(
        factory=dict, converter=_frozen, hash=False
    )
    failed_message: FailedMessage = attrs.field(
        default=FailedMessage.RETRY, validator=attrs.validators.instance_of(FailedMessage)
    )
    base: float = attrs.field(default=0.1, validator=_at_least(0))
    factor: float = attrs.field(default=2.0, validator=_at_least(1))
    max_delay: float = attrs.field(default=30.0, validator=_at_least(0))
    jitter: float = attrs.field(default=0.25, validator=_at_least(0))
    max_restarts: int = attrs.field(default=5)
    window: float = attrs.field(default=60.0)

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
        """What to do about `error`."""
        if isinstance(error, BaseExceptionGroup):
            leaves = {self.directive_for(leaf) for leaf in error.exceptions}
            return Directive.STOP if Directive.STOP in leaves else Directive.RESTART
        for kind in type(error).__mro__:
            if kind in self.directives:
                return self.directives[kind]
        return Directive.RESTART

    def delay_for(self, key: Hashable, restart: int) -> float:
        """Seconds before restart number `restart` (from 1) of `key`: always the same ones.

        The jitter is drawn from the key and the number, so that keys that crash together come
        back apart, and a test sees the same times in every run.
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
