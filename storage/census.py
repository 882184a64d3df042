"""The census: whether packed bytes hold more items than they may, before anything is made of them.

An empty list takes one byte as msgpack and eighty in memory, so the size of a payload does not
bound what it unpacks to; the number of its items does.
"""

_LENGTH = {
    0xC4: (1, 0),  # bytes
    0xC5: (2, 0),
    0xC6: (4, 0),
    0xC7: (1, 1),  # extensions, whose code is one byte more
    0xC8: (2, 1),
    0xC9: (4, 1),
    0xD9: (1, 0),  # str
    0xDA: (2, 0),
    0xDB: (4, 0),
}
"""How many bytes the length has, and what comes between it and the data."""

_CONTAINER = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4} | dict.fromkeys(range(0x80, 0xA0), 0)
"""How many bytes the length has; where it has none, the head says it."""

_STEP = [1] * 256
"""How many bytes a value with this head takes, or 0 where the head does not say."""
for _head in (*_LENGTH, *_CONTAINER):
    _STEP[_head] = 0
for _size in range(32):
    _STEP[0xA0 + _size] = 1 + _size
for _power in range(4):
    _STEP[0xCC + _power] = _STEP[0xD0 + _power] = 1 + (1 << _power)
for _power in range(5):
    _STEP[0xD4 + _power] = 2 + (1 << _power)
_STEP[0xCA], _STEP[0xCB] = 5, 9


def holds_more_than(data: bytes, most: int) -> bool:
    """Return whether all containers together have more than `most` items. Reads only as many values
    as it takes to decide, and none if `data` is too short. Damage is not detected."""
    size = len(data)
    if size <= most:
        return False
    place = items = 0
    while place < size:
        head = data[place]
        step = _STEP[head]
        if step:
            place += step
        elif head in _CONTAINER:
            width = _CONTAINER[head]
            place += 1
            items += int.from_bytes(data[place : place + width]) if width else head & 0x0F
            if items > most:
                return True
            place += width
        else:
            width, between = _LENGTH[head]
            start = place + 1 + width
            place = start + between + int.from_bytes(data[place + 1 : start])
    return False
