"""A machine that loses its power keeps everything that was acknowledged, and nothing by halves.

What LMDB writes is recorded in a real process; then a model of a disk says what may be left at each
call. Every such image is opened, read and written to. With the syncs turned off the same test must
fail, else it would prove nothing.
"""

import shutil
from hashlib import sha256
from pathlib import Path
from random import Random

import attrs
import lmdb.verify
import pytest
import trio

from keyrun.storage import Batch, LmdbStore
from keyrun.storage.conformance.model import Rows
from keyrun.storage.record import seal
from tests.faults import ledger_of_commits as commits
from tests.faults import tracing
from tests.faults.disk import crashes, lay_out
from tests.faults.soaking import amount, shown
from tests.faults.tracing import Event, Kind

SEEDS = range(amount(1, 40))
WILD = amount(2, 16)
COMMITS = 18


@attrs.define
class Findings:
    """What became of the images."""

    images: int = 0
    lost: int = 0
    torn: int = 0
    refused: int = 0
    first: str = ""

    @property
    def ok(self) -> bool:
        return not (self.lost or self.torn or self.refused)


async def judge(folder: Path, states: list[Rows], acknowledged: int, begun: int) -> str | None:
    """Open what is left: "lost", "torn", "refused", or None if all is well."""
    try:
        async with LmdbStore(folder) as store:
            with store.view():
                found = {
                    (table, key): value
                    for table in commits.TABLES
                    for key, value in await store.scan(table)
                }
            more = Batch()
            more.put("red", b"more", seal("red", b"more", ["more"]))
            await store.commit(more)
            assert await store.get("red", b"more") == more.tables["red"][b"more"]
    except Exception as error:
        return f"refused: {error!r}"
    if found in states[acknowledged : begun + 1]:
        return None
    return "lost" if found in states else "torn"


def damage(folder: Path) -> str | None:
    """What is wrong with the structure of a data file, seen without LMDB, which trusts what it
    reads and can crash on it."""
    try:
        problems = lmdb.verify.verify(str(folder))  # type: ignore[no-untyped-call]
    except (lmdb.verify.VerifyError, FileNotFoundError) as error:
        problems = [str(error)]
    return f"torn: {problems[0]}" if problems else None


async def survey(
    events: list[Event],
    states: list[Rows],
    place: Path,
    *,
    seed: int,
    wild: int = WILD,
    distrust: bool = False,
) -> Findings:
    """Open every image that is different from those before. With `distrust` the structure of each
    is looked at first, else that of some."""
    findings, seen, store = Findings(), set(), place / commits.STORE
    begun = acknowledged = told = 0
    for returned, image in shown(crashes(events, Random(seed), wild), f"seed {seed}"):
        for event in returned[told:]:
            if event.path == commits.NOTES:
                begun += event.data == b"begun\n"
                acknowledged += event.data == b"acknowledged\n"
        told = len(returned)
        image.pop(commits.NOTES, None)
        image.pop(f"{commits.STORE}/lock.mdb", None)  # anew with each boot
        content = sha256(repr(sorted(image.items())).encode()).digest()
        if (acknowledged, content) in seen or not (image or acknowledged):
            continue
        seen.add((acknowledged, content))
        findings.images += 1
        lay_out(image, place)
        looked_at = acknowledged and (distrust or findings.images % 7 == 0)
        verdict = damage(store) if looked_at else None
        if verdict is None:
            verdict = await judge(store, states, acknowledged, begun)
        if verdict is not None:
            findings.lost += verdict == "lost"
            findings.torn += verdict.startswith("torn")
            findings.refused += verdict.startswith("refused")
            where = f"image {findings.images} at call {len(returned)} of {len(events)}"
            findings.first = findings.first or f"{where}: {verdict}"
        shutil.rmtree(store, ignore_errors=True)
    return findings


def recorded(library: Path, folder: Path, *arguments: object) -> list[Event]:
    folder.mkdir()
    return tracing.record(library, folder, commits.__name__, *arguments)


@pytest.mark.parametrize("committer", ["inline", "process"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_loss_at_any_call_keeps_what_was_acknowledged_and_nothing_by_halves(
    library: Path, tmp_path: Path, place: Path, committer: str, seed: int
) -> None:
    events = recorded(library, tmp_path / "traced", seed, COMMITS, committer, "strict")
    data = f"{commits.STORE}/data.mdb"
    # Writes through a map would escape the recording.
    assert not [event for event in events if event.kind is Kind.MAPPED and event.path == data]
    states = commits.states(seed, COMMITS)
    findings = trio.run(lambda: survey(events, states, place, seed=seed))
    assert findings.ok, findings
    assert findings.images > 400


@pytest.mark.parametrize("lax", ["no sync", "no metasync"])
def test_the_model_finds_that_syncs_are_turned_off(
    library: Path, tmp_path: Path, place: Path, lax: str
) -> None:
    events = recorded(library, tmp_path / "traced", 0, 6, "inline", lax)
    states = commits.states(0, 6)
    findings = trio.run(lambda: survey(events, states, place, seed=0, wild=1, distrust=True))
    if lax == "no sync":
        # Pages come after the header that leads to them, or never.
        assert findings.torn + findings.refused > 20, findings
    else:
        # The last commit may be lost, and what is left is whole.
        assert findings.lost > 10, findings
        assert not findings.torn, findings


def test_a_machine_without_a_compiler_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="install gcc or clang"):
        tracing.build(tmp_path)
