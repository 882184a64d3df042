"""The payload codec: encode the values of users to bytes, and decode them with the same types.

`PayloadCodec` takes exact types only: what it encodes comes back as the same type and value, and
anything else is refused at once with the place named. Instances may be shared between threads.
"""

from typing import Any, NoReturn, Protocol, TypeVar, overload

from keyrun._errors import class_name
from keyrun.storage.census import holds_more_than
from keyrun.storage.json_schema import Schemas
from keyrun.storage.misfit import (
    Misfit,
    NestedTooDeep,
    PayloadError,
    PayloadMismatch,
    PayloadTypeError,
    TooLarge,
    Unsupported,
    a,
    name_of,
    said_by,
)
from keyrun.storage.native import (
    UNREADABLE,
    explain,
    pack,
    pack_flat,
    pack_flat_call,
    pack_scalar,
    unpack,
    vet,
)
from keyrun.storage.native import canonical as canonical_bytes
from keyrun.storage.typed import Plans

__all__ = ["PayloadCodec", "PayloadError", "PayloadMismatch", "PayloadTypeError", "Transform"]

T = TypeVar("T")

UNFIT = (PayloadError, PayloadTypeError)
"""The errors of the codec, also for an exception of a user's class or transform."""

_NONE = type(None)
_SCALARS = frozenset({_NONE, bool, int, float})
NOTHING = b"\xc0"
"""The bytes of None, which most steps return, and which is the input of many runs."""
# Values of these types always fit, so their size is not checked.
_LEAST_SIZE = 64


class Transform(Protocol):
    """Define the interface of a transform of payload bytes, for example encryption.

    `unwrap(wrap(data))` must return `data`. Keyrun calls both in the thread of the event loop and
    in worker threads.
    """

    def wrap(self, data: bytes, /) -> bytes:
        """Return the bytes to store."""

    def unwrap(self, data: bytes, /) -> bytes:
        """Return the bytes that `wrap` received."""


class PayloadCodec:
    """Encode values to bytes, and decode them with the same types.

    - `transform`: a `Transform` of the bytes.
    - `max_size`: the number of bytes that a payload may have.
    - `max_depth`: the number of levels of nesting.
    - `max_items`: the number of items in all lists, tuples and mappings of a payload together.

    `declared` is the annotation of the value. With `Any` or a bare `dict`, the codec accepts only
    values that describe themselves. Sets, enums, NamedTuples, attrs classes, dataclasses and
    Pydantic models must be declared.
    """

    __slots__ = (
        "_call_room",
        "_max_depth",
        "_max_items",
        "_max_size",
        "_plans",
        "_room",
        "_transform",
    )

    def __init__(
        self,
        transform: Transform | None = None,
        *,
        max_size: int = 16 * 1024 * 1024,
        max_depth: int = 64,
        max_items: int = 1_000_000,
    ) -> None:
        if max_size < _LEAST_SIZE:
            raise ValueError(f"max_size must be at least {_LEAST_SIZE} bytes, got {max_size}")
        if not 1 <= max_depth <= 128:
            raise ValueError(f"max_depth must be in 1..128, got {max_depth}")
        if max_items < 1:
            raise ValueError(f"max_items must be at least 1, got {max_items}")
        self._transform = transform
        self._max_size = max_size
        self._max_depth = max_depth
        self._max_items = max_items
        # An item takes at least a byte.
        self._room = min(max_size, max_items)
        # The arguments of a call are two levels, and its two parts are items.
        self._call_room = self._room - 2 if max_depth > 1 else -1
        self._plans = Plans()

    def encode(self, value: Any, declared: Any = Any) -> bytes:
        """Return the bytes of a value. Raises `PayloadTypeError` or `PayloadError` if the value
        cannot be stored. The message names the place in the value."""
        if value is None and self._transform is None and (declared is Any or declared is _NONE):
            return NOTHING
        data = self._plain(value, declared)
        return data if self._transform is None else _wrap(self._transform, data)

    def encode_flat(self, values: dict[str, Any]) -> bytes | None:
        """Return the bytes of a mapping whose keys are strings and whose values are flat. Return
        None for any other mapping."""
        packed = pack_flat(values) if len(values) < self._room else None
        if packed is None or len(packed) > self._max_size:
            return None
        return packed if self._transform is None else _wrap(self._transform, packed)

    @overload
    def decode(self, data: bytes) -> Any: ...
    @overload
    def decode(self, data: bytes, declared: type[T]) -> T: ...
    @overload
    def decode(self, data: bytes, declared: Any) -> Any: ...
    def decode(self, data: bytes, declared: Any = Any) -> Any:
        """Return the value that was encoded as `declared`.

        Raises `PayloadError` if the bytes are damaged, and `PayloadMismatch` if the value does not
        fit the type that is declared now.
        """
        if self._transform is not None:
            data = _unwrap(self._transform, data)
        if data == NOTHING and (declared is Any or declared is _NONE):
            return None
        if len(data) > self._max_size:
            raise PayloadError(self._too_large(len(data)))
        if len(data) > self._max_items and holds_more_than(data, self._max_items):
            raise PayloadError(self._too_many())
        value = unpack(data)
        kind = type(value)
        if kind in _SCALARS and (declared is Any or declared is kind):
            return value
        try:
            vet(value, self._max_depth, self._room)
        except Misfit as misfit:
            raise PayloadError(f"{UNREADABLE}: {misfit}") from None
        return value if declared is Any else self._lift(value, declared)

    def unwrap(self, data: bytes) -> bytes:
        """Return the bytes that a codec without a transform would have made of the value. Raises
        `PayloadError` if the transform cannot read them."""
        return data if self._transform is None else _unwrap(self._transform, data)

    def read(self, data: Any, declared: Any = Any) -> Any:
        """Return the value of JSON data as `declared`. Raises `PayloadError` if the data does not
        fit. The message names the place."""
        try:
            return self._plans.plan(declared).read(data)
        except Unsupported as misfit:
            raise PayloadTypeError(str(misfit)) from misfit.__cause__
        except Misfit as misfit:
            raise PayloadError(str(misfit)) from misfit.__cause__
        except RecursionError:
            raise PayloadError("value: nests too deep; flatten it") from None

    def schema(self, declared: Any = Any) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of the data that `read` takes as `declared`.
        Raises `PayloadTypeError` if no value of this type can be stored."""
        schemas = Schemas()
        try:
            return schemas.document(self._plans.plan(declared).schema(schemas))
        except Unsupported as misfit:
            raise PayloadTypeError(str(misfit)) from misfit.__cause__

    def canonical(self, value: Any, declared: Any = Any) -> bytes:
        """Return bytes for hashing. They do not depend on the order of mappings, and are never
        transformed."""
        return self._plain(value, declared, canonical=True)

    def canonical_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return `canonical([list(args), kwargs])`. For a few plain arguments, which most calls
        have, this takes a quarter of the time."""
        if not kwargs and len(args) <= self._call_room:
            packed = pack_flat_call(args)
            if packed is not None and len(packed) <= self._max_size:
                return packed
        return self.canonical([list(args), kwargs])

    def _plain(self, value: Any, declared: Any, *, canonical: bool = False) -> bytes:
        kind = type(value)
        if kind in _SCALARS and (declared is Any or declared is kind):
            packed = pack_scalar(value)
            if packed is not None:
                return packed
        try:
            lowered = value if declared is Any else self._plans.plan(declared).lower(value)
            if vet(lowered, self._max_depth, self._room) > self._room:
                raise TooLarge
            data = (canonical_bytes if canonical else pack)(lowered)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # hooks run code of the user's classes
            self._refuse(value, declared, error)
        if len(data) > self._max_size:
            raise PayloadError(f"value: {self._too_large(len(data))}")
        return data

    def _lift(self, value: Any, declared: Any) -> Any:
        try:
            return self._plans.plan(declared).lift(value)
        except Unsupported as misfit:
            raise PayloadTypeError(str(misfit)) from misfit.__cause__
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # defaults of fields are the user's code
            raise PayloadMismatch(
                f"what is stored does not fit {name_of(declared)} as it is declared today: "
                f"{said_by(error)}; change the code so that it can read what older code wrote"
            ) from (error.__cause__ if isinstance(error, Misfit) else error)

    def _refuse(self, value: Any, declared: Any, error: BaseException) -> NoReturn:
        """Raise an error with the place in the value that cannot be stored, and the reason."""
        if not isinstance(error, TooLarge):
            try:
                Plans(self._inspect).plan(declared).lower(value)
            except KeyboardInterrupt:
                raise
            except BaseException as better:
                error = better
        if isinstance(error, TooLarge):
            few = self._max_items < self._max_size
            why = self._too_many() if few else self._too_large(None)
            raise PayloadError(f"value: {why}") from None
        if isinstance(error, NestedTooDeep | RecursionError):
            place = error.place if isinstance(error, NestedTooDeep) else "value"
            raise PayloadError(
                f"{place}: nests deeper than {self._max_depth} levels, or contains itself; "
                "flatten it"
            ) from None
        if isinstance(error, Misfit):
            raise error.error(str(error)) from error.__cause__
        said = f"{class_name(error)}: {said_by(error)}"
        raise PayloadTypeError(f"value: cannot be stored as {name_of(declared)}: {said}") from error

    def _inspect(self, value: Any) -> Any:
        explain(value, self._max_depth)
        return value

    def _too_many(self) -> str:
        return (
            f"holds more than {self._max_items} items; store the bulk elsewhere and a reference "
            "to it here"
        )

    def _too_large(self, size: int | None) -> str:
        seen = f"more than {self._max_size}" if size is None else str(size)
        return (
            f"takes {seen} bytes, and a payload may have {self._max_size}; store the bulk "
            "elsewhere and a reference to it here"
        )


def _wrap(transform: Transform, data: bytes) -> bytes:
    try:
        wrapped = transform.wrap(data)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        said = said_by(error)
        raise PayloadError(f"wrap of {transform!r} failed: {said}; nothing was stored") from error
    if type(wrapped) is not bytes:
        raise PayloadTypeError(f"wrap of {transform!r} must return bytes, got {a(type(wrapped))}")
    return wrapped


def _unwrap(transform: Transform, data: bytes) -> bytes:
    try:
        plain = transform.unwrap(data)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PayloadError(
            f"unwrap of {transform!r} failed: {said_by(error)}; the payload is damaged, or was "
            "wrapped with another key"
        ) from error
    if type(plain) is not bytes:
        raise PayloadTypeError(f"unwrap of {transform!r} must return bytes, got {a(type(plain))}")
    return plain
