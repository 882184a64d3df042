"""A disk that loses power: what may be on it when the machine stops in the middle of a call.

Between two syncs of a file each of its sectors of 512 bytes may hold any content that it had in the
cache since the first of them, each sector for itself: writes are dropped, reordered and torn. The
length of a file and the names in a folder, those of folders included, are as uncertain until they
were synced. A sync, or a write on a descriptor that syncs, is kept once it has returned. What is in
flight at the crash may be there in part.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from random import Random

import attrs

from tests.faults.tracing import Event, Kind

SECTOR = 512

Choice = Callable[[int, int], int]
"""Which of the versions of a sector it is: called with the number of the sector and of its versions
(at least 2), the last of which is the newest."""


class _File:
    """A file: its content in the cache, and what its uncertain sectors may hold on the disk."""

    def __init__(self, *, folder: bool = False) -> None:
        self.folder = folder
        """Whether it is a folder, of which there is nothing but its name."""
        self.cache = bytearray()
        self.sectors: dict[int, list[bytes]] = {}
        self.lengths = [0]

    def _sector(self, number: int) -> bytes:
        found = bytes(self.cache[number * SECTOR : (number + 1) * SECTOR])
        return found.ljust(SECTOR, b"\0")

    def write(self, offset: int, data: bytes) -> None:
        touched = range(offset // SECTOR, (offset + len(data) - 1) // SECTOR + 1)
        for number in touched:
            self.sectors.setdefault(number, [self._sector(number)])
        end = offset + len(data)
        self.cache.extend(bytes(max(0, end - len(self.cache))))
        self.cache[offset:end] = data
        for number in touched:
            self.sectors[number].append(self._sector(number))
        if len(self.cache) != self.lengths[-1]:
            self.lengths.append(len(self.cache))

    def truncate(self, length: int) -> None:
        for number in range(length // SECTOR, len(self.cache) // SECTOR + 1):
            self.sectors.setdefault(number, [self._sector(number)])
        del self.cache[length:]
        self.cache.extend(bytes(length - len(self.cache)))
        for number, versions in self.sectors.items():
            if number >= length // SECTOR:
                versions.append(self._sector(number))
        self.lengths.append(length)

    def written_through(self, offset: int, length: int) -> None:
        """The last write there is on the disk, and with it what it takes to find it."""
        for number in range(offset // SECTOR, (offset + length - 1) // SECTOR + 1):
            self.sectors.pop(number, None)
        del self.lengths[:-1]

    def synced(self) -> None:
        self.sectors.clear()
        del self.lengths[:-1]

    def image(self, choose: Choice) -> bytes:
        found = bytearray(self.cache)
        for number, versions in self.sectors.items():
            content = versions[choose(number, len(versions))]
            start = number * SECTOR
            found.extend(bytes(max(0, start + SECTOR - len(found))))
            found[start : start + SECTOR] = content
        many = len(self.lengths)
        length = self.lengths[0 if many == 1 else choose(-1, many)]
        return bytes(found[:length]).ljust(length, b"\0")


@attrs.define
class Disk:
    """The files of a folder. Play events into it, and ask what may be left in the midst of each."""

    names: dict[str, _File] = attrs.field(factory=dict)
    """As the running system sees them."""
    _kept: dict[str, _File] = attrs.field(factory=dict)
    """As they are for sure."""
    _moves: list[Event] = attrs.field(factory=list)
    _moved: list[_File] = attrs.field(factory=list)
    _flying: set[int] = attrs.field(factory=set)
    """Sectors of the call that is in flight."""

    def begin(self, event: Event) -> None:
        """The call is made, and has not returned."""
        self._flying = set()
        match event.kind:
            case Kind.WRITE:
                self.names[event.path].write(event.offset, event.data)
                last = (event.offset + len(event.data) - 1) // SECTOR
                self._flying = set(range(event.offset // SECTOR, last + 1))
            case Kind.TRUNCATE:
                self.names[event.path].truncate(event.offset)
            case Kind.CREATE | Kind.RENAME | Kind.UNLINK | Kind.MKDIR:
                file = self.names.pop(event.path, None) or _File(folder=event.kind is Kind.MKDIR)
                self._moves.append(event)
                self._moved.append(file)
                _move(self.names, event, file)

    def end(self, event: Event) -> None:
        """The call has returned."""
        if event.kind is Kind.WRITE and event.synced:
            self.names[event.path].written_through(event.offset, len(event.data))
        elif event.kind is Kind.SYNC:
            file = self.names.get(event.path)
            if file is None or file.folder:
                self._sync_names(event.path)
            else:
                file.synced()

    def _sync_names(self, folder: str) -> None:
        left = []
        for event, file in zip(self._moves, self._moved, strict=True):
            if str(PurePosixPath(event.path).parent) == (folder or "."):
                _move(self._kept, event, file)
            else:
                left.append((event, file))
        self._moves = [event for event, _ in left]
        self._moved = [file for _, file in left]

    def images(self, random: Random, wild: int) -> Iterator[dict[str, bytes]]:
        """What may be left: some extremes, and `wild` more at random."""
        for choose in self._choices(random, wild):
            yield self._image(choose)

    def _image(self, choose: Choice) -> dict[str, bytes]:
        names = dict(self._kept)
        for event, file in zip(self._moves, self._moved, strict=True):
            if choose(-2, 2):
                _move(names, event, file)
        gone = {path for path, file in self.names.items() if file.folder} - names.keys()
        return {
            path: file.image(choose)
            for path, file in names.items()
            if not file.folder and gone.isdisjoint(map(str, PurePosixPath(path).parents))
        }

    def _choices(self, random: Random, wild: int) -> Iterator[Choice]:
        uncertain = [number for file in self.names.values() for number in file.sectors]
        yield lambda number, many: 0
        yield lambda number, many: many - 1
        if not uncertain and not self._moves:
            return
        flying = self._flying
        # What came last is there and what came before is not, and the other way round.
        yield lambda number, many: many - 1 if number in flying or number < 0 else 0
        yield lambda number, many: max(0, many - 2) if number in flying else many - 1
        for _ in range(wild):
            one = random.choice(uncertain) if uncertain else -1
            middle = sorted(uncertain)[len(uncertain) // 2] if uncertain else 0
            yield random.choice(
                (
                    lambda number, many: random.randrange(many),
                    lambda number, many: random.randrange(many),
                    lambda number, many, one=one: many - 1 if number == one else 0,
                    lambda number, many, one=one: 0 if number == one else many - 1,
                    lambda number, many, middle=middle: 0 if number < middle else many - 1,
                    lambda number, many, middle=middle: many - 1 if number < middle else 0,
                )
            )


def _move(names: dict[str, _File], event: Event, file: _File) -> None:
    """One change of a name, which happens whole or not at all."""
    names.pop(event.path, None)
    if event.kind in (Kind.CREATE, Kind.MKDIR):
        names[event.path] = file
    elif event.kind is Kind.RENAME:
        names[event.data.decode()] = file


def lay_out(image: dict[str, bytes], folder: Path) -> None:
    """Make the files of an image below `folder`."""
    for path, content in image.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def crashes(
    events: Iterable[Event], random: Random, wild: int
) -> Iterator[tuple[list[Event], dict[str, bytes]]]:
    """Every image in the middle of every call, with the calls that had returned by then."""
    disk = Disk()
    returned: list[Event] = []
    for event in events:
        disk.begin(event)
        for image in disk.images(random, wild):
            yield returned, image
        disk.end(event)
        returned.append(event)
