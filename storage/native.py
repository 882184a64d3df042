"""Native values, which need no declared type: check, pack and unpack them.

`vet` is the fast look at a value before it is packed or after it is unpacked; `explain` is the
slow one that finds the place of what the fast look or the packer did not like. Nothing here keeps
state, so everything may be called from any thread.
"""

from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from msgpack import Packer, unpackb

from keyrun._errors import class_name
from keyrun.storage.classes import must_be_declared
from keyrun.storage.extension import (
    TUPLE_MARK,
    TUPLE_MARK_BYTE,
    from_extension,
    to_extension,
)
from keyrun.storage.misfit import Misfit, NestedTooDeep, PayloadError, TooLarge, a, at_index, at_key

SCALARS: frozenset[type] = frozenset(
    {type(None), bool, int, float, str, bytes, datetime, date, Decimal, UUID}
)
FLAT: frozenset[type] = frozenset({type(None), bool, int, float, str, bytes})
"""Immutable types of msgpack itself whose values contain no other values."""
UNREADABLE = "cannot read these bytes as a payload"
INT_RANGE = range(-(2**63), 2**64)
_EXTENDED = (datetime, date, Decimal, UUID)
_NATIVE = "None, bool, int, float, str, bytes, list, tuple, dict, datetime, date, Decimal and UUID"


def vet(value: Any, depth: int, room: int) -> int:
    """Count the items of a value that looks storable. Raise `Misfit`, without a place, if not.

    A value that shares parts with itself so often that it holds more than `room` items is refused
    before anybody tries to write it out. A tuple has one more than it shows, its mark.
    """
    kind = type(value)
    if kind in SCALARS:
        return 1
    if depth == 0 and (kind is dict or kind is list or kind is tuple):
        raise NestedTooDeep
    if kind is dict:
        count = len(value)
        for key, item in value.items():
            if type(key) is not str:
                raise Misfit("has a key that is no str")
            if type(item) not in SCALARS:
                count += vet(item, depth - 1, room)
                if count > room:
                    raise TooLarge
        return count
    if kind is list or kind is tuple:
        count = len(value) if kind is list else len(value) + 1
        for item in value:
            if type(item) not in SCALARS:
                count += vet(item, depth - 1, room)
                if count > room:
                    raise TooLarge
        return count
    raise Misfit(f"cannot store {a(kind)}")


def explain(value: Any, depth: int) -> None:
    """Raise `Misfit` with the place and the reason why a value cannot be stored, if it cannot."""
    kind = type(value)
    if kind is not dict and kind is not list and kind is not tuple:
        _explain_scalar(value)
    elif depth == 0:
        raise NestedTooDeep
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise Misfit(
                    f"the key {at_key(key)[1:-1]} is {a(type(key))}, and keys must be str; "
                    "convert it, or store a list of pairs"
                )
            try:
                _explain_scalar(key)
                explain(item, depth - 1)
            except Misfit as misfit:
                raise misfit.inside(at_key(key)) from None
    else:
        for index, item in enumerate(value):
            try:
                explain(item, depth - 1)
            except Misfit as misfit:
                raise misfit.inside(at_index(index)) from None


def _explain_scalar(value: Any) -> None:
    kind = type(value)
    if kind is int:
        if value not in INT_RANGE:
            raise Misfit(
                "the int does not fit into 64 bits; store it as a str or a Decimal", PayloadError
            )
    elif kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Misfit(
                "the str holds a lone surrogate and is no valid Unicode; store it as bytes, for "
                'instance with .encode("utf-8", "surrogatepass")',
                PayloadError,
            ) from None
    elif kind in _EXTENDED:
        to_extension(value)
    elif kind not in SCALARS:
        raise Misfit(f"cannot store {a(kind)}; {_way_out(value)}")


def _way_out(value: Any) -> str:
    kind = type(value)
    if must_be_declared(kind):
        return f"annotate this place with {kind.__name__}, so that it can come back as one"
    if isinstance(value, set | frozenset):
        declared = "set" if isinstance(value, set) else "frozenset"
        return f"annotate this place with {declared}[...], or use a list, for instance sorted(...)"
    if isinstance(value, bytearray | memoryview):
        return "use bytes(...)"
    for plain in (bool, int, float, str, bytes, list, tuple, dict, datetime, date, Decimal, UUID):
        if isinstance(value, plain):
            return f"it would come back as a plain {plain.__name__}, so store a {plain.__name__}"
    return f"what can be stored is {_NATIVE}, and other types where they are declared"


_CONSTANTS = {None: b"\xc0", True: b"\xc3", False: b"\xc2"}


def pack_scalar(value: float | None) -> bytes | None:
    """Return the bytes of None, a bool, an int or a float. Return None for any other value."""
    if value is None or value is True or value is False:
        return _CONSTANTS[value]
    try:
        packed: bytes = Packer(buf_size=16).pack(value)
    except OverflowError:
        return None
    return packed


def pack_flat(values: dict[str, Any]) -> bytes | None:
    """Return the bytes of a mapping with strings as keys, if all its values are flat and fit."""
    if not FLAT.issuperset(map(type, values.values())):
        return None
    try:
        packed: bytes = Packer(buf_size=512).pack(values)
    except (OverflowError, ValueError):
        return None
    return packed


def pack_flat_call(args: tuple[Any, ...]) -> bytes | None:
    """Return the bytes of `[list(args), {}]` if every argument is flat and fits, else None."""
    if not FLAT.issuperset(map(type, args)):
        return None
    try:
        packed: bytes = Packer(buf_size=512).pack((args, {}))
    except (OverflowError, ValueError):
        return None
    return packed


def pack(value: Any) -> bytes:
    """Return the bytes of a checked value. Raise `Misfit` or a `ValueError` for faults that only
    packing finds."""
    # Packers are neither re-entrant nor safe in threads, and a new one costs 0.1 us.
    packed: bytes = Packer(default=to_extension, strict_types=True, buf_size=512).pack(value)
    return packed


def canonical(value: Any) -> bytes:
    """Pack a value so that mappings with the same items in another order have the same bytes."""
    return pack(_sorted(value))


def _sorted(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: _sorted(value[key]) for key in sorted(value)}
    if kind is list or kind is tuple:
        return kind(map(_sorted, value))
    return value


def unpack(data: bytes) -> Any:
    """Return the value in `data`, which the caller has to check. Raise `PayloadError` if there is
    none."""
    # Searching for a byte that every tuple has is cheaper than a hook that is called per array.
    list_hook = _unmark if TUPLE_MARK_BYTE in data else None
    try:
        return unpackb(
            data, ext_hook=from_extension, list_hook=list_hook, object_pairs_hook=_unique
        )
    except PayloadError as error:
        raise PayloadError(f"{UNREADABLE}: {error}") from error.__cause__
    except Exception as error:  # msgpack raises a dozen kinds
        raise PayloadError(f"{UNREADABLE}: {error or class_name(error)}") from error


def _unmark(items: list[Any]) -> Any:
    # A mark anywhere else stays, and is rejected when the value is checked.
    return tuple(items[1:]) if items and items[0] is TUPLE_MARK else items


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise PayloadError("a key occurs twice")
    return unique
