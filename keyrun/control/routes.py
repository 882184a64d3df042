"""Routes: find the operation of a path, one dictionary lookup per segment."""

import re
from collections.abc import Iterable
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

from keyrun.control.problems import Refused

T = TypeVar("T")

_PLACE = re.compile(r"\{(\w+)\}")


class _Node(Generic[T]):
    __slots__ = ("below", "below_any", "found")

    def __init__(self) -> None:
        self.below: dict[bytes, _Node[T]] = {}
        self.below_any: _Node[T] | None = None
        self.found: dict[str, tuple[T, list[str]]] = {}
        """The target and the names of its places, by method."""


class Routes(Generic[T]):
    """Targets by method and path. At each place of a path there are words or an argument, never
    both, so the order of the entries does not matter."""

    def __init__(self, entries: Iterable[tuple[str, str, T]]) -> None:
        self._root = _Node[T]()
        for verb, path, target in entries:
            node = self._root
            for segment in path.strip("/").split("/"):
                if _PLACE.fullmatch(segment):
                    node.below_any = node = node.below_any or _Node()
                else:
                    node = node.below.setdefault(segment.encode(), _Node())
            node.found[verb] = target, _PLACE.findall(path)
        self._check(self._root)

    def _check(self, node: _Node[T]) -> None:
        below = list(node.below.values())
        if node.below_any is not None:
            assert not below, f"one place has both words and an argument: {[*node.below]}"
            below.append(node.below_any)
        for each in below:
            self._check(each)

    def find(
        self, segments: Iterable[bytes]
    ) -> tuple[dict[str, tuple[T, list[str]]], list[str]] | None:
        """Return the targets of a path by method, and the values of its places. None if there is no
        such path."""
        node, values = self._root, []
        for segment in segments:
            known = node.below.get(segment)
            if known is None:
                known = node.below_any
                if known is None or not segment:
                    return None
                values.append(_text(segment))
            node = known
        return (node.found, values) if node.found else None


def _text(segment: bytes) -> str:
    try:
        return unquote_to_bytes(segment).decode() if b"%" in segment else segment.decode()
    except UnicodeDecodeError:
        raise Refused(400, "BadPath", "a segment of the path is not UTF-8") from None


def below(raw_path: bytes, root_path: str) -> list[bytes]:
    """Return the segments of a path below the path that the application is mounted at."""
    segments = raw_path.split(b"/")[1:]
    root = root_path.strip("/").encode()
    if root:
        mounted = [unquote_to_bytes(each) for each in segments]
        parts = root.split(b"/")
        if mounted[: len(parts)] == parts:
            return segments[len(parts) :]
    return segments
