"""Verify: walk over everything in an LMDB store and report every damaged record.

The file's structure is looked at first, byte by byte and without LMDB, which trusts what it reads
and can crash on a damaged page. If the structure is damaged, the records are walked in a child
process that may crash.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import lmdb
import lmdb.verify

from keyrun.storage import identity, ownership, writer
from keyrun.storage.errors import StoreCorrupt, StoreError, StoreLocked
from keyrun.storage.record import check


@attrs.frozen(kw_only=True)
class Damage:
    """Describe one damaged record, or other damage of a store."""

    problem: str
    """A sentence for people."""
    table: str | None = None
    """The table of the record. None if the damage is not about one record."""
    key: bytes | None = None
    """The key of the record. None if the damage is not about one record."""


@attrs.frozen(kw_only=True)
class Verification:
    """Hold the result of `verify`."""

    path: Path
    """The directory of the store."""
    tables: dict[str, int]
    """The number of records by table."""
    damage: tuple[Damage, ...]
    """All damage that was found."""
    structure_checked: bool
    """Whether the structure of the file was checked. False if another process had the store open:
    then only the records can be checked, because the file changes meanwhile."""

    @property
    def ok(self) -> bool:
        """Return whether no damage was found."""
        return not self.damage

    @property
    def records(self) -> int:
        """Return the number of records, damaged records included."""
        return sum(self.tables.values())


def verify(path: str | os.PathLike[str]) -> Verification:
    """Check all records of the store at `path`, also while it is in use, and return the result.

    Every record must be sealed, as Keyrun's own records are. The call blocks until the check ends,
    so call it from a thread in a service."""
    path = Path(path)
    try:
        expected = identity.check_data_file(path)
    except StoreCorrupt as error:
        return Verification(
            path=path, tables={}, damage=(Damage(problem=str(error)),), structure_checked=False
        )
    if expected is None:
        raise StoreError(f"there is no Keyrun store at {path}")
    problems, structure_checked = _check_structure(path)
    # LMDB may crash on a damaged page, and does not open one store twice in a process: only what
    # is known to be sound is walked here.
    walk = _walk(path) if structure_checked and not problems else _walk_apart(path)
    tables: dict[str, int] = {}
    for finding in walk:
        if isinstance(finding, Damage):
            problems.append(finding)
        else:
            tables.update(finding)
    return Verification(
        path=path, tables=tables, damage=tuple(problems), structure_checked=structure_checked
    )


def _check_structure(path: Path) -> tuple[list[Damage], bool]:
    """Return the damage, and whether it could be looked for."""
    try:
        lock = ownership.OwnerLock(path)
    except StoreLocked:
        return [], False
    try:
        problems = lmdb.verify.verify(str(path))  # type: ignore[no-untyped-call]
        return [Damage(problem=problem) for problem in problems], True
    except lmdb.verify.VerifyError as error:
        return [Damage(problem=str(error))], True
    finally:
        lock.release()


def _walk(path: Path) -> Iterator[Damage | dict[str, int]]:
    """Return the damage, and for each table how many records it has."""
    try:
        environment = writer.open_environment(str(path), map_size=0, read_only=True)
    except lmdb.Error as error:
        yield Damage(problem=f"LMDB cannot open the data: {error}")
        return
    with environment:
        expected = identity.read_identity(path)
        try:
            if expected is not None:
                identity.check_same(path, expected, identity.stored_identity(environment))
            with environment.begin() as transaction:
                for name in environment.dbs(transaction):
                    yield from _walk_table(environment, transaction, name)
        except (lmdb.Error, StoreError) as error:
            yield Damage(problem=f"the walk ended early: {error}")


def _walk_table(
    environment: lmdb.Environment, transaction: "lmdb.Transaction[bytes]", name: bytes
) -> Iterator[Damage | dict[str, int]]:
    table = bytes(name).decode(errors="replace")
    database = environment.open_db(name, txn=transaction, create=False)
    found = 0
    for key, value in transaction.cursor(db=database):
        found += 1
        try:
            check(table, key, value)
        except StoreError as error:
            yield Damage(problem=str(error), table=table, key=key)
    yield {table: found}
    counted = transaction.stat(database)["entries"]
    if counted != found:
        problem = f"the table counts {counted} records, but has {found}"
        yield Damage(problem=problem, table=table)


def _walk_apart(path: Path) -> Iterator[Damage | dict[str, int]]:
    program = "import sys; from keyrun.storage.verify import main; main(sys.argv[1])"
    command = [sys.executable, "-c", program, str(path)]
    child = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    yield from map(from_line, child.stdout.splitlines())
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        yield Damage(problem=f"the walk over the records was ended by {name} at a damaged page")
    elif child.returncode > 0:
        yield Damage(problem=f"the walk over the records failed with code {child.returncode}")


def to_line(finding: Damage | dict[str, int]) -> str:
    """Return a finding as one line of JSON."""
    if not isinstance(finding, Damage):
        return json.dumps(finding)
    key = None if finding.key is None else finding.key.hex()
    return json.dumps({"problem": finding.problem, "table": finding.table, "key": key})


def from_line(line: str | bytes) -> Damage | dict[str, int]:
    """Return the finding that `to_line` wrote."""
    fields: dict[str, Any] = json.loads(line)
    if "problem" not in fields:
        return fields
    key = None if fields["key"] is None else bytes.fromhex(fields["key"])
    return Damage(problem=fields["problem"], table=fields["table"], key=key)


def main(path: str) -> None:
    """Print one line for each finding. This runs in a child process."""
    for finding in _walk(Path(path)):
        print(to_line(finding), flush=True)
