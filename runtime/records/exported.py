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
from keyrun.runtime.records.submission import Standing, Submission

FORMAT = 1
_BYTES = "keyrun.bytes"


@attrs.frozen
class Records:
    """What is stored of one run: what was submitted, how it stands, and its journal."""

    submission: Submission
    standing: Standing | None
    entries: tuple[tuple[int, JournalEntry], ...]
    """Sequence number and entry, in order."""

    @property
    def last_at(self) -> float:
        """Return the time of the last record."""
        ended = None if self.standing is None else self.standing.ended_at
        journaled = [entry.at for _, entry in self.entries[-1:]]
        return max([self.submission.submitted_at, *journaled, ended or 0.0])


def render(records: Records) -> str:
    """The records as JSON, one entry of the journal per line."""
    standing = records.standing
    parts = {
        "keyrun history": FORMAT,
        "number": records.submission.number,
        "run": records.submission.fields(),
        "status": None if standing is None else standing.fields(),
    }
    head = [f"{_line(name)}: {_line(value)}" for name, value in parts.items()]
    encoded = [(sequence, entry.encode()) for sequence, entry in records.entries]
    entries = ",\n".join(map(_line, encoded))
    return "{\n" + ",\n".join([*head, f'"journal": [\n{entries}\n]']) + "\n}\n"


def parse(text: str) -> Records:
    """The inverse of `render`."""
    read = json.loads(text, object_hook=_bytes)
    known = read["keyrun history"]
    if known != FORMAT:
        raise InvalidHistory(
            f"this history has format {known!r}, and this Keyrun knows formats up to {FORMAT}: it "
            "was saved by a newer Keyrun; upgrade this one"
        )
    return Records(
        Submission.read(read["number"], read["run"]),
        None if read["status"] is None else Standing.read(read["status"]),
        tuple((int(sequence), decode(fields)) for sequence, fields in read["journal"]),
    )


def _line(value: Any) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: b64encode(value).decode()}
    raise TypeError(f"a record cannot hold {value!r}")


def _bytes(value: dict[str, Any]) -> Any:
    return b64decode(value[_BYTES], validate=True) if value.keys() == {_BYTES} else value
