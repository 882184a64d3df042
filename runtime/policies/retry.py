"""Retry: the number of attempts of a step, the errors that are retried, and the delays."""

from random import Random
from typing import Any, Literal, TypedDict, Unpack

import attrs

from keyrun.actors import checks
from keyrun.runtime.errors import PermanentError
from keyrun.runtime.internal_errors import from_user
from keyrun.runtime.user_errors import inside
from keyrun.runtime.validators import at_least

Shape = Literal["none", "fixed", "linear", "exponential"]
_AGES = 1e300

ErrorTypes = tuple[type[BaseException], ...]


def _check(instance: "Retry", attribute: "attrs.Attribute[Any]", value: Any) -> None:
    least = 1 if attribute.name == "factor" else 0
    if not checks.is_number(value) or not value >= least:
        raise ValueError(f"{attribute.name} must be at least {least}, got {value!r}")
    if attribute.name == "jitter" and value > 1:
        raise ValueError(f"jitter must be between 0 and 1, got {value!r}")


def _error_types(types: Any) -> ErrorTypes:
    return (types,) if isinstance(types, type) else tuple(types)


def _check_types(instance: "Retry", attribute: "attrs.Attribute[Any]", types: Any) -> None:
    for each in types:
        if not isinstance(each, type) or not issubclass(each, BaseException):
            raise TypeError(f"{attribute.name} must be exception types, got {each!r}")


class Common(TypedDict, total=False):
    """The options that all shapes of a policy take. The defaults are those of `Retry`."""

    max_attempts: int
    jitter: float
    retry_on: ErrorTypes
    never_retry_on: ErrorTypes


@attrs.frozen(kw_only=True)
class Retry:
    """Decide which errors of a step are retried, how often, and after which delays.

    Use `Retry.none()`, `Retry.fixed(...)`, `Retry.linear(...)` or `Retry.exponential(...)`. If a
    step raises an exception group, as Trio nurseries do, the policy checks the exceptions inside
    it. If one of them must not be retried, the step is not retried.
    """

    shape: Shape
    """How the delay grows. The four class methods set it."""
    max_attempts: int = attrs.field(default=3, validator=at_least(1))
    """The number of attempts, the first one included."""
    base: float = attrs.field(default=1.0, validator=_check)
    """Seconds before the first retry."""
    factor: float = attrs.field(default=2.0, validator=_check)
    """The growth of an exponential delay from one retry to the next."""
    max_delay: float = attrs.field(default=60.0, validator=_check)
    """The longest delay in seconds, jitter included."""
    jitter: float = attrs.field(default=0.25, validator=_check)
    """The share by which a delay may differ either way, from 0 to 1. It depends on the run id, the
    step and the attempt only, so the same run always waits equally long."""
    retry_on: ErrorTypes = attrs.field(
        default=(BaseException,), converter=_error_types, validator=_check_types
    )
    """The exception types that are retried. Default: all, also those that are not an
    `Exception`."""
    never_retry_on: ErrorTypes = attrs.field(
        default=(), converter=_error_types, validator=_check_types
    )
    """The exception types that are not retried. `PermanentError` is never retried."""

    @classmethod
    def none(cls) -> "Retry":
        """Return a policy with one attempt and no retry."""
        return cls(shape="none", max_attempts=1)

    @classmethod
    def fixed(cls, *, delay: float = 1.0, **common: Unpack[Common]) -> "Retry":
        """Return a policy that waits `delay` seconds before every retry."""
        return cls(shape="fixed", base=delay, max_delay=float("inf"), **common)

    @classmethod
    def linear(
        cls, *, step: float = 1.0, max_delay: float = 60.0, **common: Unpack[Common]
    ) -> "Retry":
        """Return a policy that waits `step` seconds before the first retry, and `step` seconds
        longer before each further retry."""
        return cls(shape="linear", base=step, max_delay=max_delay, **common)

    @classmethod
    def exponential(
        cls,
        *,
        base: float = 1.0,
        factor: float = 2.0,
        max_delay: float = 60.0,
        **common: Unpack[Common],
    ) -> "Retry":
        """Return a policy that waits `base` seconds before the first retry, and `factor` times as
        long before each further retry."""
        return cls(shape="exponential", base=base, factor=factor, max_delay=max_delay, **common)

    def retries(self, error: BaseException) -> bool:
        """Return whether `error` may be retried, if attempts are left."""
        return not self._is_final(error) and self._is_listed(error)

    # A nursery raises a group of the errors inside it. `issubclass(type(...))`, because the
    # `__class__` of an error may raise.

    def _is_final(self, error: BaseException) -> bool:
        if _is_one_of(error, (PermanentError, *self.never_retry_on)):
            return True
        return any(map(self._is_final, _inside(error)))

    def _is_listed(self, error: BaseException) -> bool:
        if _is_one_of(error, self.retry_on):
            return True
        inside = _inside(error)
        return bool(inside) and all(map(self._is_listed, inside))

    def delay_for(self, run_id: str, step: str, attempt: int) -> float:
        """Return the seconds to wait after attempt number `attempt`, from 1, has failed."""
        match self.shape:
            case "none":
                return 0.0
            case "fixed":
                delay = self.base
            case "linear":
                delay = self.base * attempt
            case "exponential":
                try:
                    delay = self.base * self.factor ** (attempt - 1)
                except OverflowError:
                    delay = _AGES if self.base else 0.0
        spread = Random(f"{run_id}\0{step}\0{attempt}").uniform(-self.jitter, self.jitter)
        return min(delay * (1 + spread), self.max_delay)


def _is_one_of(error: BaseException, types: tuple[type[BaseException], ...]) -> bool:
    try:
        return issubclass(type(error), types)
    except BaseException as other:  # the metaclass of a type is user code
        from_user(other)
        raise


def _inside(error: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions of a group, or nothing if `error` is not a group."""
    return inside(error) if issubclass(type(error), BaseExceptionGroup) else ()


DEFAULT_RETRY = Retry.exponential()
