"""Stores that are not there, not ours, damaged, too new or in use: one line, and no traceback."""

import json
import shutil
from pathlib import Path

import pytest
import trio

from keyrun.storage import Batch, LmdbStore, verify
from tests.keyrun.cli import LONG_KEY, invoke, lines, make_store, shell
from tests.storage.processes import line, running_python
from tests.storage.test_ownership import OWNER
from tests.storage.test_verify import damage

COMMANDS = (
    ["runs"],
    ["status", "r1"],
    ["history", "r1"],
    ["keys"],
    ["dead-letters"],
    ["schedules"],
    ["stats"],
    ["compact"],
    ["verify"],
)


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Path:
    """A store that may be spoilt."""
    return Path(shutil.copytree(filled, tmp_path / "store"))


def refused(store: Path, command: list[str]) -> str:
    """The one line with which a command refuses a store."""
    name, *rest = command
    result = invoke(name, store, *rest)
    assert result.exit_code == 4, result.output
    assert result.stdout == ""
    (told,) = result.stderr.splitlines()
    assert "Traceback" not in told
    return told


@pytest.mark.parametrize("command", COMMANDS)
def test_where_there_is_no_store_it_is_said_what_is_there(
    tmp_path: Path, command: list[str]
) -> None:
    assert refused(tmp_path / "a", command) == (
        f"Error: no store at {tmp_path / 'a'}: the path does not exist; give the directory that "
        "was passed to open_runtime()"
    )
    (tmp_path / "b").mkdir()
    assert "it is empty; give the directory" in refused(tmp_path / "b", command)
    (tmp_path / "b" / "notes.txt").touch()
    assert "it has no keyrun.json; give the directory" in refused(tmp_path / "b", command)
    assert "it is a file; give the directory" in refused(tmp_path / "b" / "notes.txt", command)
    assert [file.name for file in (tmp_path / "b").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_of_a_newer_keyrun_asks_for_an_upgrade(store: Path, command: list[str]) -> None:
    file = store / "keyrun.json"
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))
    assert "upgrade Keyrun" in refused(store, command)


@pytest.mark.parametrize("command", COMMANDS[:7])
def test_a_store_that_was_cut_is_refused(store: Path, command: list[str]) -> None:
    data = store / "data.mdb"
    whole = data.read_bytes()
    data.write_bytes(whole[: len(whole) // 2])
    assert "but its header says" in refused(store, command)
    data.write_bytes(b"")
    assert "is empty" in refused(store, command)
    data.write_bytes(b"\xaa" * len(whole))
    refused(store, command)
    data.unlink()
    assert "is missing" in refused(store, command)


@pytest.mark.parametrize("command", COMMANDS[:7])
def test_a_damaged_identity_is_told(store: Path, command: list[str]) -> None:
    (store / "keyrun.json").write_text("{")
    assert "keyrun.json is damaged" in refused(store, command)


def number(number: int) -> bytes:
    return b"default\0" + number.to_bytes(8, "big")


def test_a_damaged_run_is_shown_as_far_as_it_can_be_read(store: Path) -> None:
    damage(store, "runs", number(3))
    damage(store, "runs", number(5))
    damage(store, "status", number(4))
    result = invoke("runs", store, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    runs = {run["run_id"]: run for run in map(json.loads, result.stdout.splitlines())}
    states = {name: runs[name]["state"] for name in ("r1", "r3", "r4", "r5")}
    assert states == {
        "r1": "succeeded",
        "r3": "succeeded",
        "r4": "quarantined",
        "r5": "quarantined",
    }
    assert (runs["r5"]["key"], runs["r5"]["submitted_at"]) == ("carol", None)
    for run_id in ("r3", "r4", "r5"):
        assert "is damaged" in runs[run_id]["reason"]
        shown = json.loads(lines("status", store, run_id, "--json")[0])
        assert shown == {**runs[run_id], "input": shown["input"]}
        assert any("is damaged" in line for line in lines("status", store, run_id))
        assert any("is damaged" in line for line in lines("history", store, run_id))
    for run_id in ("r4", "r5"):
        assert runs[run_id]["quarantine_cause"] == "damaged"
        assert any("quarantined (damaged)" in line for line in lines("status", store, run_id))
    found = [json.loads(run) for run in lines("runs", store, "--json", "--state", "quarantined")]
    assert {run["run_id"] for run in found} == {"r4", "r5"}


def test_a_damaged_run_that_may_fit_is_left_out_and_told_of(store: Path) -> None:
    damage(store, "runs", number(3))
    damage(store, "runs", number(5))
    result = invoke("runs", store, "--json", "--since", "2023-01-01")
    found = {json.loads(line)["run_id"] for line in result.stdout.splitlines()}
    assert "r1" in found
    assert not {"r3", "r5"} & found
    assert result.exit_code == 0
    assert (
        f"2 damaged records were left out. To list the damage: keyrun verify {store}"
        in result.stderr
    )


def test_a_key_whose_first_run_is_damaged_is_listed(store: Path) -> None:
    damage(store, "runs", number(4))
    for words in ([], ["--state", "quarantined"]):
        first = json.loads(lines("keys", store, "--json", *words)[0])
        assert (first["key"], first["runs"], first["head"]) == ("carol", 2, "r4")
        assert (first["state"], first["quarantined"]) == ("quarantined", True)
        assert "is damaged" in first["reason"]


@pytest.mark.parametrize("key", [b"default\0", b"default\0\x01\xff12345678", b"default\0\x01k1"])
def test_a_key_that_is_damaged_itself_is_left_out_and_told_of(store: Path, key: bytes) -> None:
    async def spoil() -> None:
        async with LmdbStore(store) as opened:
            batch = Batch()
            batch.put("queue", key, b"")
            await opened.commit(batch)

    trio.run(spoil)
    result = invoke("keys", store, "--json")
    assert [json.loads(line)["key"] for line in result.stdout.splitlines()] == ["carol", LONG_KEY]
    assert "1 damaged record was left out" in result.stderr


def test_verify_finds_damage_and_says_so_with_its_exit_code(store: Path) -> None:
    result = invoke("verify", store)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "0 damaged" in result.stdout
    damage(store, "runs", number(3))
    result = invoke("verify", store)
    assert result.exit_code == 1
    assert "in table 'runs' is damaged: its checksum does not match\n" in result.stdout
    assert "1 damaged" in result.stdout
    result = invoke("verify", store, "--json")
    assert result.exit_code == 1
    (found,) = json.loads(result.stdout)["damage"]
    assert (found["table"], found["key"]) == ("runs", number(3).hex())
    (store / "data.mdb").write_bytes(b"")
    assert invoke("verify", store).exit_code == 1


def test_compact_makes_a_store_smaller_and_keeps_what_is_in_it(store: Path) -> None:
    before = lines("runs", store, "--json")
    size = (store / "data.mdb").stat().st_size
    files = sorted(file.name for file in store.iterdir())
    (told,) = lines("compact", store, "--json")
    sizes = json.loads(told)
    assert sizes["bytes_before"] == size
    assert sizes["bytes_after"] == (store / "data.mdb").stat().st_size < size
    assert lines("runs", store, "--json") == before
    assert verify(store).ok
    assert sorted(file.name for file in store.iterdir()) == files
    assert [file.name for file in store.parent.iterdir()] == ["store"]


def test_a_store_in_use_is_not_compacted_but_can_be_copied(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running_python(OWNER, store, "inline") as owner:
        assert line(owner) == "open"
        told = refused(store, ["compact"])
        assert f"process {owner.pid} has it open" in told
        assert invoke("compact", store, "--to", tmp_path / "copy").exit_code == 0
        assert invoke("runs", store).exit_code == 0
        checked = invoke("verify", tmp_path / "store")
        assert checked.stdout.endswith("because a process has the store open.\n"), checked.stdout
    assert invoke("runs", tmp_path / "copy").exit_code == 0


READER = """
    import sys, trio
    from keyrun import open_reader

    async def main():
        async with open_reader(sys.argv[1]):
            print("open", flush=True)
            await trio.sleep_forever()

    trio.run(main)
"""


def test_a_store_that_somebody_reads_is_not_compacted(store: Path) -> None:
    before = (store / "data.mdb").read_bytes()
    with running_python(READER, store) as reader:
        assert line(reader) == "open"
        assert "another process reads the store" in refused(store, ["compact"])
    assert (store / "data.mdb").read_bytes() == before
    assert [file.name for file in store.parent.iterdir()] == ["store"]
    assert invoke("compact", store).exit_code == 0


def test_a_compact_copy_does_not_overwrite_what_is_there(store: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    result = invoke("compact", store, "--to", tmp_path / "there")
    assert result.exit_code == 4
    assert "choose another place" in result.stderr


def test_a_directory_that_may_not_be_looked_into_is_told(store: Path) -> None:
    loop = store.parent / "loop"
    loop.symlink_to(loop)
    assert refused(loop, ["runs"]).startswith("Error: ")


def test_the_real_command_says_the_same(tmp_path: Path) -> None:
    done = shell("runs", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(f"Error: no store at {tmp_path / 'nowhere'}: ")
    done = shell("runs", make_store(tmp_path / "store"), "--state", "failed", "--json")
    assert json.loads(done.stdout)["run_id"] == "r2"
