"""Entities: classes whose methods are called under a key and keep durable state there.

An instance is made for each call and thrown away after it; what lasts is `state`. Which calls there
are, and in which order they run, is the business of `calls`.
"""

import inspect
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar, cast, get_type_hints, overload
from uuid import uuid4

import attrs

from keyrun.runtime.definitions.step import return_type
from keyrun.runtime.errors import UnknownMethod
from keyrun.runtime.limits import Limits
from keyrun.runtime.texts import brief

E = TypeVar("E")

MAX_NAME = 128
_KIND = "__keyrun_entity__"
_PLAIN = (Any, None, bool, int, float, str, bytes, list, dict)


class Entity:
    """What a method finds in `self`. Deriving from it tells type checkers; `@entity` does the
    rest, and gives the same to classes that do not."""

    key: str
    """The ordering key that was called."""
    state: MutableMapping[str, Any]
    """The durable mapping of this key and class. Changes are stored when the method returns, in one
    commit with its answer, and dropped if it raises. It is changed in place, never assigned."""
    request_id: str | None
    """What makes a repeat of this call harmless, if the caller gave it."""

    @property
    def idempotency_key(self) -> str:
        """For services that can tell a repeated request by it: the same for all calls with this
        request id, and for no other call."""
        if self.request_id is None:
            made: str = self.__dict__.setdefault("_idempotency_key", uuid4().hex)
            return made
        named = f"{kind_of(type(self)).name}\0{self.key}\0{self.request_id}"
        return sha256(named.encode()).hexdigest()[:32]


@attrs.frozen(kw_only=True, eq=False)
class Method:
    """A method that can be called."""

    name: str
    function: Callable[..., Awaitable[Any]]
    parameters: tuple[str, ...]
    """The names of those that may be given by position."""
    types: dict[str, Any]
    """Of parameters whose values do not tell their own type."""
    declared: Any
    """What it returns."""


@attrs.frozen(kw_only=True, eq=False)
class Kind:
    """What `@entity` knows of a class."""

    cls: type
    name: str
    encoded: bytes
    limits: Limits
    effects: bool
    methods: dict[str, Method]

    def method(self, name: str) -> Method:
        """The method of this name."""
        method = self.methods.get(name) if isinstance(name, str) else None
        if method is None:
            known = ", ".join(sorted(self.methods)) or "none"
            raise UnknownMethod(
                f"the entity {self.name!r} has no method {brief(name)} that can be called; it has: "
                f"{known}"
            )
        return method


def kind_of(cls: type) -> Kind:
    """What `@entity` has made of exactly this class."""
    kind = vars(cls).get(_KIND) if isinstance(cls, type) else None
    if kind is None:
        raise TypeError(f"an entity is a class with @entity above it, and {brief(cls)} is none")
    return cast(Kind, kind)


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
    """Make an entity of a class: its public async methods can be called under a key.

    `name`, by default that of the class, is what its state is stored under. Of `limits` the
    `step_timeout` counts, for each call. `effects=False` promises that methods do nothing but
    change the state and answer; then a call need not wait until the one before it is durable, and
    many calls of one key share a commit.
    """

    def decorate(cls: type) -> type:
        if not isinstance(cls, type):
            raise TypeError(f"an entity is a class, and {brief(cls)} is none")
        if cls.__init__ is not object.__init__ or not cls.__dictoffset__:  # type: ignore[misc]
            raise TypeError(
                f"the entity {cls.__name__} has an __init__ or __slots__; what lasts of it is "
                "self.state, so it has neither"
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
        kind = Kind(
            cls=cls,
            name=called,
            encoded=called.encode(),
            limits=limits,
            effects=bool(effects),
            methods=methods,
        )
        setattr(cls, _KIND, kind)
        return cls

    return decorate if cls is None else decorate(cls)


def _is_name(name: object) -> bool:
    try:
        return isinstance(name, str) and 0 < len(name.encode()) <= MAX_NAME and "\0" not in name
    except UnicodeEncodeError:
        return False


def _methods(cls: type) -> dict[str, Method]:
    found = {}
    for name, function in inspect.getmembers(cls, inspect.iscoroutinefunction):
        # What is static or of the class has no state to work on.
        is_method = inspect.isfunction(inspect.getattr_static(cls, name))
        if is_method and not name.startswith("_"):
            found[name] = _method(name, function)
    return found


def _method(name: str, function: Callable[..., Any]) -> Method:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        types = get_type_hints(function)
    except Exception:
        types = {}
    types = {name: kind for name, kind in types.items() if kind not in _PLAIN and name != "return"}
    return Method(
        name=name,
        function=function,
        parameters=tuple(each.name for each in parameters if each.kind in by_position),
        types=types,
        declared=return_type(function),
    )


class Proxy:
    """Stands for an entity under one key: to call its methods is to call the entity."""

    def __init__(
        self,
        call: Callable[..., Awaitable[Any]],
        kind: Kind,
        key: str,
        timeout: float,
        request_id: str | None,
    ) -> None:
        self._given = call, kind, key, timeout, request_id

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call, kind, key, timeout, request_id = self._given
        bound = partial(call, kind, key, kind.method(name), timeout, request_id)
        if request_id is None:
            # It is found without asking the next time; what has a request id is called once.
            setattr(self, name, bound)
        return bound

    def __repr__(self) -> str:
        return f"<entity {self._given[1].name} of {self._given[2]!r}>"
