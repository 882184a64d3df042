"""Exported records: write and read the records of one run as text for a file.

The file has the fields of each record as they are in the store. So code that reads old stores also
reads old files. Bytes are written as {"keyrun.bytes": ...}, a name that no header can have.
"""

import json
from base64 import b64decode, b64encode
from typing import Any

import attrs

from keyrun.runtime.errors import InvalidHistory
from keyrun.runtime.records.journal_entry import JournalEntry, decode
from keyrun.runtime.records.submission import StatusRecord, Submission

FORMAT = 1
_BYTES = "keyrun.bytes"


@attrs.frozen
class Records:
    """The records of one run: its submission, its status and its journal."""

    submission: Submission
    status: StatusRecord | None
    entries: tuple[tuple[int, JournalEntry], ...]
    """Sequence number and entry, in order."""

    @property
    def last_at(self) -> float:
        """Return the time of the last record."""
        ended = None if self.status is None else self.status.ended_at
        journaled = [entry.at for _, entry in self.entries[-1:]]
        return max([self.submission.submitted_at, *journaled, ended or 0.0])


def render(records: Records) -> str:
    """Return the records as JSON, with one journal entry per line."""
    status = records.status
    parts = {
        "keyrun history": FORMAT,
        "number": records.submission.number,
        "run": records.submission.fields(),
        "status": None if status is None else status.fields(),
    }
    head = [f"{_line(name)}: {_line(value)}" for name, value in parts.items()]
    encoded = [(sequence, entry.encode()) for sequence, entry in records.entries]
    entries = ",\n".join(map(_line, encoded))
    return "{\n" + ",\n".join([*head, f'"journal": [\n{entries}\n]']) + "\n}\n"


def parse(text: str) -> Records:
    """Return the records that `render` wrote."""
    read = json.loads(text, object_hook=_bytes)
    known = read["keyrun history"]
    if known != FORMAT:
        raise InvalidHistory(
            f"this history has format {known!r}, but this Keyrun reads formats up to {FORMAT}; "
            "upgrade Keyrun to read it"
        )
    return Records(
        Submission.read(read["number"], read["run"]),
        None if read["status"] is None else StatusRecord.read(read["status"]),
        tuple((int(sequence), decode(fields)) for sequence, fields in read["journal"]),
    )


def _line(value: Any) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: b64encode(value).decode()}
    raise TypeError(f"a record cannot contain {value!r}")


def _bytes(value: dict[str, Any]) -> Any:
    return b64decode(value[_BYTES], validate=True) if value.keys() == {_BYTES} else value
