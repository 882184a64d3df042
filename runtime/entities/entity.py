"""Entities: classes whose methods are called under a key and keep durable state there.

Keyrun makes an instance for each call and drops it afterwards. Only `state` lasts. The module
`calls` executes the calls, and `dispatcher` decides their order.
"""

import inspect
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar, cast, overload
from uuid import uuid4

import attrs

from keyrun.runtime.definitions.annotations import declared_types, require_storable
from keyrun.runtime.errors import UnknownMethod
from keyrun.runtime.limits import Limits
from keyrun.runtime.texts import brief

E = TypeVar("E")

MAX_NAME = 128
_DEFINITION = "__keyrun_entity__"
_PLAIN = (Any, None, bool, int, float, str, bytes, list, dict)


class Entity:
    """Declare the attributes that the methods of an entity find in `self`, for type checkers.

    `@entity` sets the attributes, also in a class that does not derive from `Entity`."""

    key: str
    """The ordering key of the call."""
    state: MutableMapping[str, Any]
    """The durable mapping of this key and class. Keyrun stores changes when the method returns, in
    one commit with its answer, and drops them if the method raises. Change the mapping in place,
    never assign it."""
    request_id: str | None
    """The request id that the caller passed, or None."""

    @property
    def idempotency_key(self) -> str:
        """Return an id that is the same for all calls with this request id, and different for
        every other call. Pass it to services that recognise repeated requests."""
        if self.request_id is None:
            made: str = self.__dict__.setdefault("_idempotency_key", uuid4().hex)
            return made
        named = f"{definition_of(type(self)).name}\0{self.key}\0{self.request_id}"
        return sha256(named.encode()).hexdigest()[:32]


@attrs.frozen(kw_only=True, eq=False)
class EntityMethod:
    """A method that can be called."""

    name: str
    function: Callable[..., Awaitable[Any]]
    parameters: tuple[str, ...]
    """The names of the parameters that may be given by position."""
    types: dict[str, Any]
    """The types of parameters whose encoded values do not show their type."""
    declared: Any
    """The declared return type."""


@attrs.frozen(kw_only=True, eq=False)
class EntityDefinition:
    """A class that `@entity` made an entity of: its name, options and methods."""

    cls: type
    name: str
    encoded: bytes
    limits: Limits
    effects: bool
    methods: dict[str, EntityMethod]

    def method(self, wanted: str | Callable[..., Any]) -> EntityMethod:
        """Return a method by its name or its function, or raise `UnknownMethod`."""
        if isinstance(wanted, str):
            method = self.methods.get(wanted)
        else:
            each = self.methods.values()
            method = next((method for method in each if method.function is wanted), None)
        if method is None:
            known = ", ".join(sorted(self.methods)) or "none"
            raise UnknownMethod(
                f"the entity {self.name!r} has no method {brief(wanted)} that can be called; it "
                f"has: {known}"
            )
        return method


def is_entity(cls: object) -> bool:
    """Return whether this very class is decorated with `@entity`."""
    return isinstance(cls, type) and _DEFINITION in vars(cls)


def definition_of(cls: type) -> EntityDefinition:
    """Return the definition of exactly this class, or raise `TypeError`. A subclass of an entity
    is not an entity."""
    if not is_entity(cls):
        raise TypeError(f"an entity requires a class decorated with @entity, got {brief(cls)}")
    return cast(EntityDefinition, vars(cls)[_DEFINITION])


@overload
def entity(cls: type[E], /) -> type[E]: ...
@overload
def entity(
    *, name: str | None = ..., limits: Limits = ..., effects: bool = ...
) -> Callable[[type[E]], type[E]]: ...
def entity(
    cls: Any = None,
    /,
    *,
    name: str | None = None,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    effects: bool = True,
) -> Any:
    """Make an entity of a class. `rt.call` and `rt.entity` call its public async methods under a
    key.

    - `name`: the name under which Keyrun stores the state, by default the name of the class.
    - `limits`: `step_timeout` limits each call. The other limits do not apply.
    - `effects`: `effects=False` promises that the methods only change the state and return an
      answer. Then a call does not wait until the call before it is durable, and many calls of one
      key share a commit.
    """

    def decorate(cls: type) -> type:
        if not isinstance(cls, type):
            raise TypeError(f"@entity requires a class, got {brief(cls)}")
        if cls.__init__ is not object.__init__ or not cls.__dictoffset__:  # type: ignore[misc]
            raise TypeError(
                f"the entity {cls.__name__} has an __init__ or __slots__; remove it, because only "
                "self.state lasts from one call to the next"
            )
        called = cls.__name__ if name is None else name
        if not _is_name(called):
            raise ValueError(
                f"name must be a string of 1 to {MAX_NAME} bytes as UTF-8 and hold no NUL, got "
                f"{brief(called)}"
            )
        if not isinstance(limits, Limits):
            raise TypeError(f"limits must be Limits, got {brief(limits)}")
        methods = _methods(cls)
        if not methods:
            raise TypeError(f"the entity {called} has no public async method that could be called")
        if not issubclass(cls, Entity):
            cls.idempotency_key = Entity.idempotency_key  # type: ignore[attr-defined]
        definition = EntityDefinition(
            cls=cls,
            name=called,
            encoded=called.encode(),
            limits=limits,
            effects=bool(effects),
            methods=methods,
        )
        setattr(cls, _DEFINITION, definition)
        return cls

    return decorate if cls is None else decorate(cls)


def _is_name(name: object) -> bool:
    try:
        return isinstance(name, str) and 0 < len(name.encode()) <= MAX_NAME and "\0" not in name
    except UnicodeEncodeError:
        return False


def _methods(cls: type) -> dict[str, EntityMethod]:
    found = {}
    for name, function in inspect.getmembers(cls, inspect.iscoroutinefunction):
        # Static methods and class methods have no state to work on.
        is_method = inspect.isfunction(inspect.getattr_static(cls, name))
        if is_method and not name.startswith("_"):
            found[name] = _method(name, function)
    return found


def _method(name: str, function: Callable[..., Any]) -> EntityMethod:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    types = declared_types(function)
    declared = types.pop("return", Any)
    require_storable(declared, f"the result of the method {function.__qualname__}")
    types = {name: declared for name, declared in types.items() if declared not in _PLAIN}
    return EntityMethod(
        name=name,
        function=function,
        parameters=tuple(each.name for each in parameters if each.kind in by_position),
        types=types,
        declared=declared,
    )


class EntityProxy:
    """Stands for an entity under one key. Calling a method of the proxy calls the entity."""

    def __init__(
        self,
        call: Callable[..., Awaitable[Any]],
        definition: EntityDefinition,
        key: str,
        timeout: float,
        request_id: str | None,
    ) -> None:
        self._bound = call, definition, key, timeout, request_id

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call, definition, key, timeout, request_id = self._bound
        bound = partial(call, definition, key, definition.method(name), timeout, request_id)
        if request_id is None:
            # The next call finds it as an attribute. A proxy with a request id is called once.
            setattr(self, name, bound)
        return bound

    def __repr__(self) -> str:
        return f"<entity {self._bound[1].name} of {self._bound[2]!r}>"
