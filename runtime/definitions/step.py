"""Steps: functions that a run calls durably, and their options."""

import inspect
import re
from collections.abc import Callable, Coroutine
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

import attrs

from keyrun.actors.errors import shown
from keyrun.runtime.definitions.annotations import declared_types, require_storable
from keyrun.runtime.policies.retry import Retry
from keyrun.runtime.policies.step_policies import Policies, check_policies
from keyrun.runtime.texts import check_text
from keyrun.runtime.validators import if_set, positive
from keyrun.runtime.values import UNSET, Priority, Unset

if TYPE_CHECKING:
    from keyrun.runtime.policies.circuit_breaker import CircuitBreaker
    from keyrun.runtime.policies.rate_limit import RateLimit
    from keyrun.runtime.policies.resources import Resources

_NAME = re.compile(r"(?:(?!\(\))[^#/])+")

P = ParamSpec("P")
R = TypeVar("R")


@attrs.frozen(kw_only=True)
class StepOptions:
    """The options of a step; `@step` describes them."""

    name: str
    timeout: float | Unset | None = attrs.field(default=UNSET, validator=if_set(positive))
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
    """Hold a function and its options. `@step` returns a step function.

    Pass it to `ctx.step`. A direct call of a step function calls the plain function, which helps in
    unit tests."""

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
        """The function whose policies its calls share."""
        self.quota = quota
        """The name and the total of the resources that it reserves. None for those of the
        runtime."""
        self.is_async = inspect.iscoroutinefunction(function)
        self.careful = options.at_most_once
        timeout = options.timeout
        self.timeout = None if timeout is UNSET else inf if timeout is None else timeout
        """Seconds for one attempt. None if the limits of the run decide."""
        self.guarded = any(
            policy is not None
            for policy in (options.breaker, options.rate, options.max_concurrent, options.resources)
        )
        """Whether a policy can delay its calls."""
        self.can_start_inline = (
            self.is_async and not options.asyncio and not options.shield and not self.careful
        )
        """Whether an attempt may be started inline, once no policy of the step delays it."""
        self.starts_inline = (
            self.can_start_inline and not self.guarded and options.compensate is None
        )
        """Whether an attempt may be started inline without asking a policy."""
        self.read: Callable[[Any], Any] | None = None
        """Makes the output of the journaled value, if they differ."""
        self.gate: tuple[object, Any] | None = None
        """The gates of the runtime that called it last, and its gate among them."""
        self.complete: Callable[..., None] | None = None
        """Stages the value in place of a journal entry. Turns of a machine set it."""
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
        """Return a step of the same function with other options, which are those of `@step`.
        Options that you do not pass stay as they are."""
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

    def __repr__(self) -> str:
        return f"<step {self.set.name}>"


def check_name(name: str) -> None:
    """Raise ValueError if a step cannot have this name."""
    fits = isinstance(name, str) and _NAME.fullmatch(name)
    if not fits or len(check_text(name, "name").encode()) > 200:
        raise ValueError(f"name must be 1 to 200 bytes without '#', '/' and '()', got {name!r}")


def _check_no_method(function: Callable[..., Any]) -> None:
    """Raise TypeError if it is written in a class and takes an instance."""
    owner, _, name = getattr(function, "__qualname__", "").rpartition(".")
    if not owner or owner.endswith("<locals>") or not inspect.isfunction(function):
        return
    if next(iter(inspect.signature(function).parameters), "") in ("self", "cls"):
        raise TypeError(
            f"@step cannot decorate the method {owner}.{name}, because a step has no instance; "
            "move the function out of the class, and reach what it needs with "
            f"current_step().resources; or make a step of a bound method: step(instance.{name})"
        )


def _checked(options: StepOptions) -> StepOptions:
    check_name(options.name)
    if options.retry is not None and not isinstance(options.retry, Retry):
        raise TypeError(f"retry must be a Retry, got {options.retry!r}")
    return options


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
) -> "_StepDecorator": ...
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
    """Make a step of an async function, or of a sync function, which runs in a worker thread.

    - `name`: the name in the journal, by default the name of the function.
    - `timeout`: seconds for one attempt. None means no limit. By default the `step_timeout` of the
      run applies, which is 300 seconds unless you change it.
    - `retry`: the retry policy, by default that of the workflow, or `Retry.exponential()`.
    - `shield`: A cancel does not stop the step. The step can check
      `current_step().cancel_requested`.
    - `at_most_once`: The step never starts twice. After a crash it fails with the kind
      `interrupted`.
    - `abandon`: After the timeout of a sync step, Keyrun does not wait for its thread.
    - `asyncio`: The async function uses an asyncio library.
    - `breaker`: a `CircuitBreaker`, which stops calls for a while after too many failures.
    - `rate`: a `RateLimit`.
    - `max_concurrent`: the number of calls that may run at once.
    - `max_waiting`: the number of calls that may wait for these policies. Beyond it, a graph holds
      back the nodes before this one.
    - `resources`: the `Resources` that a call reserves while it runs.
    - `priority`: decides which waiting call starts first, by default the priority of the run.
    - `compensate`: a function or a step that undoes this step if the run fails or is cancelled. It
      receives a `Compensation`.

    The policies from `breaker` to `resources` apply to the function, over all runs of a
    runtime.
    """
    check_policies(policies)

    def decorate(function: Callable[..., Any]) -> StepFunction[..., Any]:
        if isinstance(function, StepFunction):
            raise TypeError(f"{function!r} is a step already; use .options(...) to change it")
        if not callable(function):
            raise TypeError(f"@step requires a function, got {function!r}")
        _check_no_method(function)
        is_async = inspect.iscoroutinefunction(function)
        if asyncio and not is_async:
            raise TypeError(f"asyncio=True requires an async function, got {function!r}")
        if abandon and is_async:
            raise TypeError(f"abandon=True requires a sync function, got {function!r}")
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
        declared = declared_types(function).get("return", Any)
        require_storable(declared, f"the result of the step {options.name!r}")
        return StepFunction(function, _checked(options), declared)

    return decorate if function is None else decorate(function)


class _StepDecorator:
    """The type of what `@step(...)` returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> StepFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> StepFunction[P, R]: ...
    def __call__(self, function: Any, /) -> Any:
        raise AssertionError("only for the type checker")


@lru_cache(1024)
def _plain(function: Callable[..., Any]) -> StepFunction[..., Any]:
    # Bounded: methods and functions made inside a workflow are different objects in every run.
    return step(function)


def as_step(function: Callable[..., Any]) -> StepFunction[..., Any]:
    """Return `function` if it is a step, or a step of it with default options."""
    if isinstance(function, StepFunction):
        return function
    if not callable(function):
        raise TypeError(f"a step must be a function, got {shown(function)}")
    return _plain(function)
