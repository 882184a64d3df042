"""Frames: what a Python client and the owner send each other on a channel.

A channel is one request `POST /v1/channel` whose body and answer are both streams of msgpack
arrays, so that many calls share a connection and are answered as they end.

| from the client | meaning |
|---|---|
| `[id, operation, operation id or None, arguments]` | perform an operation |
| `[id]` | cancel a call |

| from the owner | meaning |
|---|---|
| `[id, ANSWER, value]` | the answer |
| `[id, ERROR, error]` | the error |
| `[id, BEGUN]` | a stream has begun |
| `[id, ITEM, value]` | one answer of a stream |
| `[id, END]` | the end of a stream |
| `[]` | nothing: the connection is alive |
"""

from typing import Any

import msgpack

ANSWER, ERROR, BEGUN, ITEM, END = range(5)

PATH = "/channel"
MEDIA_TYPE = "application/vnd.keyrun.channel.v1+msgpack"
"""The media type of both streams. Its number changes with the frames."""

LARGEST = 64 * 1024 * 1024
"""The size in bytes of the largest frame."""
HEARTBEAT = 5.0
"""Seconds between two frames of the owner, at most."""

ALIVE: bytes = msgpack.packb([])


def pack(*frame: Any) -> bytes:
    """Return the bytes of a frame."""
    packed: bytes = msgpack.packb(frame)
    return packed


def unpacker() -> Any:
    """Return an object that takes bytes (`feed`) and yields frames."""
    return msgpack.Unpacker(max_buffer_size=LARGEST, strict_map_key=False)
