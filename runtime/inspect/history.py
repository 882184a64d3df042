"""History: the persisted story of a run, every attempt with its error and delay.

It carries the records that it was told from, so that it can be saved to a file and later be used
to check that changed code still fits the run: see `keyrun.testing.replay`.
"""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, overload

import attrs

from keyrun.runtime.errors import InvalidHistory
from keyrun.runtime.inspect.history_entries import Happening, HistoryBuilder
from keyrun.runtime.records.exported import Records, parse, render

__all__ = ["Happening", "History"]


@attrs.frozen(repr=False)
class History(Sequence[Happening]):
    """What happened to a run, in order. Empty if there is no such run. What cannot be read any more
    is told as `damaged`."""

    records: Records | None = None
    """What it was told from, payloads included, as they are stored; None if there is no such run,
    or a part of it is damaged."""
    _story: tuple[Happening, ...] = attrs.field(kw_only=True)

    @_story.default
    def _tell(self) -> tuple[Happening, ...]:
        told = self.records
        if told is None:
            return ()
        story = HistoryBuilder(told.submission)
        story.add(entry for _, entry in told.entries)
        return story.end(told.standing)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file, for `load`. The file is text and holds all that the run was given
        and its steps returned, encrypted if the runtime has a `transform` for that."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "History":
        """Read what `save` wrote."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise InvalidHistory(f"{path}: {error}") from error

    def to_json(self) -> str:
        """What `save` writes."""
        return render(self.whole())

    def whole(self) -> Records:
        """The records, if all of them are there."""
        if self.records is not None:
            return self.records
        for happening in self:
            if happening.event == "damaged":
                raise InvalidHistory(f"this history has a gap: {happening.detail}")
        raise InvalidHistory("this history is empty: no run had that id, or it was forgotten")

    @classmethod
    def from_json(cls, text: str) -> "History":
        """The inverse of `to_json`."""
        try:
            return cls(parse(text))
        except InvalidHistory:
            raise
        except Exception as error:  # whatever the text provokes, the answer is the same
            raise InvalidHistory(
                f"this is no history that Keyrun has saved, or it was changed since: {error}; "
                "save it again: (await runtime.history(run_id)).save(path)"
            ) from error

    @overload
    def __getitem__(self, index: int, /) -> Happening: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[Happening, ...]: ...
    def __getitem__(self, index: Any, /) -> Any:
        return self._story[index]

    def __len__(self) -> int:
        return len(self._story)

    def __repr__(self) -> str:
        about = "a damaged run" if self._story else "nobody"
        if self.records is not None:
            about = self.records.submission.run_id
        return f"<history of {about}, {len(self)} happenings>"
