"""Frames: what a Python client and the owner send each other on a channel.

A channel is one request `POST /v1/channel` whose body and answer are both streams of frames, so
that many calls share a connection and are answered as they end. A frame is its size in four bytes,
and a msgpack array of that size.

| from the client | meaning |
|---|---|
| `[id, operation, operation id or None, arguments]` | perform an operation |
| `[id, operation, operation id or None, arguments, trace]` | the same, in a span: see below |
| `[id]` | cancel a call |
| `[id, number]` | the client has taken this number of further answers of a stream |

| from the owner | meaning |
|---|---|
| `[id, ANSWER, value]` | the answer |
| `[id, ERROR, error]` | the error |
| `[id, BEGUN]` | a stream has begun |
| `[id, ITEM, value]` | one answer of a stream |
| `[id, END]` | the end of a stream |
| `[0, ITEM, value]` | the connection is alive, and these are the statistics of the runtime |
| `[]` | the connection is alive |

`trace` is a map with the fields `traceparent` and `tracestate` of the span in which the client
makes the call. The owner sends at most `WINDOW` answers of a stream that the client has not taken.
"""

from collections.abc import Iterator
from typing import Any

import msgpack

from keyrun.storage.census import holds_more_than

ANSWER, ERROR, BEGUN, ITEM, END = range(5)

PATH = "/channel"
MEDIA_TYPE = "application/vnd.keyrun.channel.v1+msgpack"
"""The media type of both streams. Its number changes with the frames."""

LARGEST = 64 * 1024 * 1024
"""Bytes that a frame may have."""
MOST_ITEMS = 1_000_000
"""Items that the arrays and maps of a frame may have together. Payloads are encoded, and each is
one item."""
WINDOW = 256
"""Answers of a stream that may be under way."""
HEARTBEAT = 5.0
"""Seconds between two frames of the owner, at most. So often it also sends the statistics."""

_HEAD = 4


class BrokenFrame(ValueError):
    """Raised if what the other end sends is no frame."""


def pack(*frame: Any) -> bytes:
    """Return the bytes of a frame. Raises `ValueError` if it is too large."""
    packed: bytes = msgpack.packb(frame)
    if len(packed) > LARGEST:
        raise ValueError(
            f"the arguments or the answer of a call have {len(packed):,} bytes, and at most "
            f"{LARGEST:,} bytes can be sent: ask for less at a time"
        )
    return len(packed).to_bytes(_HEAD, "big") + packed


class Frames:
    """Reads frames from the bytes of the other end, whatever it sends."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """Take bytes, and yield the frames that are complete. Raises `BrokenFrame`."""
        waiting = self._data
        waiting += data
        start = 0
        while len(waiting) - start >= _HEAD:
            size = int.from_bytes(waiting[start : start + _HEAD], "big")
            if size > LARGEST:
                raise BrokenFrame(f"a frame of {size:,} bytes, and a frame has at most {LARGEST:,}")
            end = start + _HEAD + size
            if len(waiting) < end:
                break
            yield _unpacked(bytes(waiting[start + _HEAD : end]))
            start = end
        del waiting[:start]


def _unpacked(data: bytes) -> list[Any]:
    if holds_more_than(data, MOST_ITEMS):
        raise BrokenFrame(f"a frame with more than {MOST_ITEMS:,} items")
    try:
        frame = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise BrokenFrame(f"a frame that is not msgpack ({type(error).__name__})") from error
    if type(frame) is not list or (frame and type(frame[0]) is not int):
        raise BrokenFrame("a frame that is not an array with an id")
    return frame
