"""The progress of a campaign, on standard error: one line that changes, or a line per trial."""

import sys
from time import monotonic
from typing import TextIO

import attrs


@attrs.define
class Progress:
    """Says what is under way, how far it is and for how long it has been."""

    stream: TextIO = attrs.field(factory=lambda: sys.stderr)
    _started: float = attrs.field(factory=monotonic, init=False)

    def show(self, what: str, done: int, total: int) -> None:
        """`what` begins; `done` of `total` are behind us."""
        seconds = int(monotonic() - self._started)
        self._line(f"[{done + 1}/{total}] {seconds // 60}:{seconds % 60:02} {what}")

    def note(self, text: str) -> None:
        """Something that is to stay on the screen."""
        if self.stream.isatty():
            print(f"\r\x1b[K  {text}", file=self.stream, flush=True)
        else:
            print(f"  {text}", file=self.stream, flush=True)

    def end(self) -> None:
        """Nothing is under way."""
        if self.stream.isatty():
            print("\r\x1b[K", end="", file=self.stream, flush=True)

    def _line(self, text: str) -> None:
        if self.stream.isatty():
            print(f"\r\x1b[K{text}", end="", file=self.stream, flush=True)
        else:
            print(text, file=self.stream, flush=True)
