"""Options: check the arguments of `open_runtime`.

The faces check them before they enter a lifespan or start a thread. Iterables are not read here,
because they may be generators.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from inspect import iscoroutinefunction, isfunction, signature
from typing import Any, Literal, TypeAlias, get_args

from keyrun.actors import checks
from keyrun.runtime.host.lifespan import is_manager, not_async
from keyrun.runtime.limits import Limits
from keyrun.runtime.recovery.retention import Retention
from keyrun.runtime.tuning import Tuning
from keyrun.storage import Store
from keyrun.storage.namespace import check_name
from keyrun.storage.opening import is_url

OnUnregistered: TypeAlias = Literal["hold", "refuse"]
WhenLocked: TypeAlias = Literal["fail", "wait", "join"]


def check_options(options: Mapping[str, Any]) -> None:
    """Raise an error that names the first wrong argument. Options may be missing."""
    for name, check in CHECKS.items():
        if name in options:
            check(name, options[name])


def _store(name: str, value: object) -> None:
    if not isinstance(value, str | os.PathLike | Store):
        raise TypeError(f"{name} must be a path or a Store, got {value!r}")


def _choice(name: str, value: object, *, of: object) -> None:
    if value not in get_args(of):
        *first, last = map(repr, get_args(of))
        choices = f"{', '.join(first)} or {last}"
        raise ValueError(f"{name} must be {choices}, got {value!r}")


def _hook(name: str, value: object) -> None:
    if value is None:
        return
    if not callable(value) or not _takes(value, 1):
        raise TypeError(f"{name} must be a function of one RunOutcome, got {value!r}")


def _transform(name: str, value: object) -> None:
    if value is None:
        return
    methods = [getattr(value, method, None) for method in ("wrap", "unwrap")]
    if not all(map(callable, methods)):
        raise TypeError(f"{name} must have the methods wrap and unwrap, got {value!r}")
    if isinstance(value, type) and any(map(isfunction, methods)):
        raise TypeError(f"{name} must be an instance, got {value!r}: call the class")


def _redact(name: str, value: object) -> None:
    if value is not None and (
        not callable(value) or not _takes(value, 1) or iscoroutinefunction(value)
    ):
        raise TypeError(f"{name} must be a plain function of one value, got {value!r}")


def _tracing(name: str, value: object) -> None:
    start = getattr(value, "start", None)
    if value is not None and (isinstance(value, type) or not callable(start)):
        raise TypeError(f"{name} must be a keyrun.tracing.Tracing(), got {value!r}")


def _resources(name: str, value: object) -> None:
    if value is not None:
        from keyrun.runtime.policies.resources import Resources

        checks.instance(name, value, Resources)


def _lifespan(name: str, value: object) -> None:
    if value is None or is_manager(value):
        return
    if not callable(value):
        raise not_async(value)
    if not _takes(value, 0):
        raise TypeError(f"{name} must be a function without parameters, got {value!r}")


def _takes(function: Callable[..., object], count: int) -> bool:
    """Return whether a function can be called with `count` arguments, or True if that is not
    known."""
    try:
        parameters = signature(function)
    except (TypeError, ValueError):  # some builtins have no signature
        return True
    try:
        parameters.bind(*range(count))
    except TypeError:
        return False
    return True


def _when_locked(name: str, value: object) -> None:
    if value is not None:
        _choice(name, value, of=WhenLocked)


def lock_policy(given: WhenLocked | None, store: object) -> WhenLocked:
    """Return what happens if a store is locked, also if the caller does not say it."""
    if given is not None:
        return given
    return "join" if is_url(store) else "fail"


CHECKS: dict[str, Callable[[str, Any], None]] = {
    "store": _store,
    "workflows": checks.several,
    "entities": checks.several,
    "schedules": checks.several,
    "namespace": lambda name, value: check_name(value),
    "limits": partial(checks.instance, kind=Limits),
    "max_concurrent_steps": partial(checks.count, least=1),
    "max_pending": partial(checks.count, least=1),
    "max_pending_per_key": partial(checks.count, least=1),
    "backpressure_timeout": partial(checks.at_least, least=0),
    "drain_timeout": partial(checks.at_least, least=0),
    "on_terminal": _hook,
    "hook_timeout": checks.positive,
    "retention": partial(checks.instance, kind=Retention),
    "on_unregistered": partial(_choice, of=OnUnregistered),
    "when_locked": _when_locked,
    "lock_timeout": partial(checks.at_least, least=0),
    "transform": _transform,
    "redact": _redact,
    "wall": checks.function,
    "max_restarts": partial(checks.count, least=0),
    "restart_window": checks.positive,
    "resources": _resources,
    "evict_after": partial(checks.at_least, least=0),
    "lifespan": _lifespan,
    "tracing": _tracing,
    "tuning": partial(checks.instance, kind=Tuning),
}
"""How each option is checked."""
