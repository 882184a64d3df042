"""An application: describe what `open_runtime` opens once, for programs, tests and the command."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import attrs

from keyrun.actors import checks
from keyrun.runtime.definitions.workflow import Registry, Workflow
from keyrun.runtime.host.lifespan import AnyLifespan
from keyrun.runtime.host.tracing import TracerSource
from keyrun.runtime.limits import Limits
from keyrun.runtime.options import OnUnregistered, check_options
from keyrun.runtime.policies.resources import Resources
from keyrun.runtime.queue.hook import Hook
from keyrun.runtime.recovery.retention import Retention
from keyrun.runtime.redaction import Redact
from keyrun.runtime.schedules.declared import Schedule, check_schedules
from keyrun.storage.payload import Transform

LISTS = ("workflows", "entities", "schedules")
"""The options that are lists. A generator can be read once, and an application is opened often."""

P = ParamSpec("P")
R = TypeVar("R")


@attrs.frozen(kw_only=True)
class App:
    """Describe an application: `app = App(workflows=[checkout])`. Open it with
    `open_runtime("state", app=app)`, or serve it with `keyrun serve shop:app --store state`.

    The fields are those arguments of `open_runtime` that belong to the application. The other
    arguments, such as `namespace`, `when_locked` and `control`, say where and how it is opened.
    `attrs.evolve(app, drain_timeout=60)` returns a changed copy."""

    workflows: Iterable[Workflow[Any, Any]] = ()
    """The workflows that the runtime can run, in one or several versions."""
    entities: Iterable[type] = ()
    """The entity classes that can be called."""
    schedules: Iterable[Schedule[Any]] = ()
    """The schedules that each open puts in place. A schedule that leaves the list stays."""
    limits: Limits = Limits()  # noqa: RUF009 (frozen)
    """Limits of all runs."""
    max_concurrent_steps: int = 256
    """The number of steps that may run at once."""
    max_pending: int = 100_000
    """The number of runs that may wait to start."""
    max_pending_per_key: int = 10_000
    """The number of runs of one key that may wait to start."""
    backpressure_timeout: float = 30.0
    """Seconds that `rt.submit` waits for room before it raises `Backpressure`."""
    drain_timeout: float = 10.0
    """Seconds that running steps have to finish when the runtime closes."""
    on_terminal: Hook | None = None
    """The terminal hook."""
    hook_timeout: float = 60.0
    """Seconds that an async hook has for one call."""
    retention: Retention = Retention()  # noqa: RUF009 (frozen)
    """How long ended runs are kept."""
    on_unregistered: OnUnregistered = "hold"
    """What happens to unfinished runs of workflows that are not in `workflows`."""
    transform: Transform | None = None
    """A `Transform` of stored payloads, for example encryption."""
    redact: Redact | None = None
    """A function that returns what log lines, traces, the audit log and the HTTP API may show of a
    text or a payload."""
    max_restarts: int = 5
    """After how many restarts Keyrun quarantines a key for which its own code fails."""
    restart_window: float = 60.0
    """The seconds within which these restarts are counted."""
    resources: Resources | None = None
    """The `Resources` that steps share."""
    evict_after: float = 1.0
    """Seconds after which a run that waits is evicted from memory."""
    lifespan: AnyLifespan | None = None
    """A context manager that yields what steps need, or a function that returns one. With a
    function the application can be opened more than once."""
    tracing: TracerSource | None = None
    """A `keyrun.tracing.Tracing()`, which makes OpenTelemetry spans of runs and attempts."""

    def __attrs_post_init__(self) -> None:
        check_options(self.options())
        for name in LISTS:
            object.__setattr__(self, name, tuple(getattr(self, name)))
        Registry(self.workflows, self.resources)
        check_schedules(self.schedules)

    def options(self) -> dict[str, Any]:
        """Return the arguments of `open_runtime` that this application has."""
        return {each.name: getattr(self, each.name) for each in attrs.fields(App)}


def with_app(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `open_runtime` with those of `app` in its place. Raise an error if an
    argument that belongs to the application was given beside it."""
    app: App | None = given.pop("app", None)
    if app is None:
        return given
    checks.instance("app", app, App)
    options = app.options()
    twice = [name for name in given if name in options]
    if twice:
        raise TypeError(
            f"open_runtime got app=... and {twice[0]}=..., which belongs to the app: give it to "
            f"App({twice[0]}=...), or pass app=attrs.evolve(app, {twice[0]}=...)"
        )
    return given | options


def takes_app(function: Callable[P, R]) -> Callable[P, R]:
    """Let `open_runtime` take its arguments from an `App`."""

    @wraps(function)
    def opening(*args: P.args, **given: P.kwargs) -> R:
        # The default values of the function would hide which arguments were given.
        return function(*args, **with_app(given))

    return opening
