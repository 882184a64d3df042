"""Steps: functions that a run calls durably, and their options."""

import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, get_type_hints, overload

import attrs

from keyrun.runtime.limits import ResolvedLimits
from keyrun.runtime.policies.retry import Retry
from keyrun.runtime.policies.step_policies import Policies, check_policies
from keyrun.runtime.texts import check_text
from keyrun.runtime.values import UNSET, Priority, Unset

if TYPE_CHECKING:
    from keyrun.runtime.policies.circuit_breaker import CircuitBreaker
    from keyrun.runtime.policies.rate_limit import RateLimit
    from keyrun.runtime.policies.resources import Resources

_NAME = re.compile(r"(?:(?!\(\))[^#/])+")

P = ParamSpec("P")
R = TypeVar("R")


def _positive(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value is UNSET or value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{attribute.name} must be positive, got {value!r}")


@attrs.frozen(kw_only=True)
class StepOptions:
    """What holds for a step. `timeout` is per attempt, None for none.

    `shield`: a cancel only tells it, through `current_step().cancel_requested`.
    `at_most_once`: it is never started twice; after a crash in the middle it fails instead.
    `abandon`: a sync step that overruns is left behind in its thread.
    `asyncio`: the coroutine is one of an asyncio library. The others are in `Policies`.
    """

    name: str
    timeout: float | Unset | None = attrs.field(default=UNSET, validator=_positive)
    retry: Retry | None = None
    shield: bool = False
    at_most_once: bool = False
    abandon: bool = False
    asyncio: bool = False
    breaker: "CircuitBreaker | None" = None
    rate: "RateLimit | None" = None
    max_concurrent: int | None = None
    max_waiting: int | None = None
    resources: "Resources | None" = None
    priority: Priority | None = None
    compensate: Callable[..., Any] | None = None


class StepFunction(Generic[P, R]):
    """A function with its options; `@step` makes it. Called directly it is the plain function."""

    def __init__(
        self,
        function: Callable[P, Any],
        options: StepOptions,
        declared: Any,
        *,
        origin: Callable[..., Any] | None = None,
        quota: "tuple[str, Resources] | None" = None,
    ) -> None:
        self.function = function
        self.set = options
        self.declared = declared
        self.origin = origin or function
        """What its calls have in common with those of other steps."""
        self.quota = quota
        """Whose resources it reserves: a name, and what there is; those of the runtime if None."""
        self.is_async = inspect.iscoroutinefunction(function)
        self.careful = options.at_most_once
        timeout = options.timeout
        self.patience = None if timeout is UNSET else inf if timeout is None else timeout
        """Seconds for one attempt; None if it is for others to say."""
        self.guarded = any(
            policy is not None
            for policy in (options.breaker, options.rate, options.max_concurrent, options.resources)
        )
        """Whether there is anything in the way of its calls."""
        self.can_start_inline = (
            self.is_async and not options.asyncio and not options.shield and not self.careful
        )
        """Whether an attempt may be started inline, once no policy of the step delays it."""
        self.starts_inline = (
            self.can_start_inline and not self.guarded and options.compensate is None
        )
        """Whether an attempt may be started inline without asking a policy."""
        self.read: Callable[[Any], Any] | None = None
        """What its output is, given what the journal has, if that is not the same."""
        self.gate: tuple[object, Any] | None = None
        """What is in its way, as the runtime that last asked has it."""
        self.complete: Callable[..., None] | None = None
        """What to do with a value instead of journaling it: turns of a machine."""
        self.__name__ = options.name
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.function(*args, **kwargs)

    def options(
        self,
        *,
        name: str | Unset = UNSET,
        timeout: float | Unset | None = UNSET,
        retry: Retry | Unset = UNSET,
        shield: bool | Unset = UNSET,
        at_most_once: bool | Unset = UNSET,
        abandon: bool | Unset = UNSET,
        **policies: Unpack[Policies],
    ) -> "StepFunction[P, R]":
        """The same function with other options."""
        check_policies(policies)
        given: dict[str, Any] = {
            field: value
            for field, value in (
                ("name", name),
                ("timeout", timeout),
                ("retry", retry),
                ("shield", shield),
                ("at_most_once", at_most_once),
                ("abandon", abandon),
            )
            if value is not UNSET
        }
        options = _checked(attrs.evolve(self.set, **given, **policies))
        return StepFunction(
            self.function, options, self.declared, origin=self.origin, quota=self.quota
        )

    def timeout_in(self, limits: ResolvedLimits) -> float:
        """Seconds for one attempt: its own word, else that of the run."""
        return limits.attempt_timeout if self.patience is None else self.patience

    def __repr__(self) -> str:
        return f"<step {self.set.name}>"


def check_name(name: str) -> None:
    """Raise unless a step can have this name."""
    fits = isinstance(name, str) and _NAME.fullmatch(name)
    if not fits or len(check_text(name, "name").encode()) > 200:
        raise ValueError(f"name must be 1 to 200 bytes without '#', '/' and '()', got {name!r}")


def _checked(options: StepOptions) -> StepOptions:
    check_name(options.name)
    if options.retry is not None and not isinstance(options.retry, Retry):
        raise TypeError(f"retry must be a Retry, got {options.retry!r}")
    return options


def return_type(function: Callable[..., Any]) -> Any:
    """The declared return type, or Any where there is none that can be read."""
    try:
        return get_type_hints(function).get("return", Any)
    except Exception:
        return Any


@overload
def step(function: Callable[P, Coroutine[Any, Any, R]], /) -> StepFunction[P, R]: ...
@overload
def step(function: Callable[P, R], /) -> StepFunction[P, R]: ...
@overload
def step(
    *,
    name: str | None = ...,
    timeout: float | Unset | None = ...,
    retry: Retry | None = ...,
    shield: bool = ...,
    at_most_once: bool = ...,
    abandon: bool = ...,
    asyncio: bool = ...,
    **policies: Unpack[Policies],
) -> "_Decorator": ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | Unset | None = UNSET,
    retry: Retry | None = None,
    shield: bool = False,
    at_most_once: bool = False,
    abandon: bool = False,
    asyncio: bool = False,
    **policies: Unpack[Policies],
) -> Any:
    """Make a step of an async function, or of a sync one, which then runs in a worker thread."""
    check_policies(policies)

    def decorate(function: Callable[..., Any]) -> StepFunction[..., Any]:
        if isinstance(function, StepFunction):
            raise TypeError(f"{function!r} is a step already; use .options(...) to change it")
        if not callable(function):
            raise TypeError(f"a step is made of a function, got {function!r}")
        is_async = inspect.iscoroutinefunction(function)
        if asyncio and not is_async:
            raise TypeError(f"asyncio=True needs an async function, and {function!r} is none")
        if abandon and is_async:
            raise TypeError("abandon is for sync steps; an async one is cancelled")
        options = StepOptions(
            name=name or str(getattr(function, "__name__", "step")),
            timeout=timeout,
            retry=retry,
            shield=shield,
            at_most_once=at_most_once,
            abandon=abandon,
            asyncio=asyncio,
            **policies,
        )
        return StepFunction(function, _checked(options), return_type(function))

    return decorate if function is None else decorate(function)


class _Decorator:
    """What `@step(...)` returns: only its type matters."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> StepFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> StepFunction[P, R]: ...
    def __call__(self, function: Any, /) -> Any:
        raise AssertionError("only for the type checker")


@lru_cache(1024)
def _plain(function: Callable[..., Any]) -> StepFunction[..., Any]:
    # Bounded: methods, and functions made inside of a workflow, are others in every run.
    return step(function)


def as_step(function: Callable[..., Any]) -> StepFunction[..., Any]:
    """`function` as a step, with default options unless it is one."""
    return function if isinstance(function, StepFunction) else _plain(function)


StepLike = StepFunction[P, R] | Callable[P, Awaitable[R]]
