"""Commands that operate a store: on a store that no process has open, and on a live one."""

import json
import os
import shlex
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import lmdb
import pytest
import trio
from trio.testing import MockClock

import keyrun.sync
from keyrun import State, open_reader
from keyrun.cli import bulk, operating
from keyrun.cli.arguments import ArgumentKind, kind_of
from keyrun.cli.operate import commands
from keyrun.control.operation import Idle
from keyrun.control.options import Control
from keyrun.control.roles import ITSELF
from keyrun.runtime.records.tables import NUMBER
from keyrun.schedules import Every
from keyrun.storage import LmdbStore
from keyrun.testing import RecordingHook, open_test_runtime
from tests.keyrun.cli import invoke, lines
from tests.keyrun.operated import OPTIONS, app, fails, gated, nap, order
from tests.storage.processes import line, running_python

Dump = dict[str, dict[bytes, bytes]]


async def _fill(path: Path) -> None:
    async with open_test_runtime(LmdbStore(path), on_terminal=RecordingHook(), **OPTIONS) as rt:
        await rt.submit(order, {"id": 1}, key="alice", run_id="order", tags=["eu"])
        await rt.submit(nap, 1e6, key="alice", run_id="behind", tags=["eu"])
        await rt.submit(nap, 1e6, key="bob", run_id="held")
        await rt.submit(nap, 0, key="bob", run_id="next", delay=1e6)
        await rt.submit(gated, key="carol", run_id="gated")
        await rt.submit(fails, key="dave", run_id="dead")
        await rt.submit(nap, 0, key="erin", run_id="ended")
        await rt.schedule("hourly", nap, 0, key="h", when=Every(3600))
        await rt.schedule("stopped", nap, 0, key="h", when=Every(3600), paused=True)
        await trio.sleep(1)
        await rt.pause("held")
        await rt.pause_key("frank")
        await trio.sleep(1)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("idle") / "store"
    trio.run(_fill, path, clock=MockClock(autojump_threshold=0))
    return path


@pytest.fixture
def idle(template: Path, tmp_path: Path) -> Path:
    """A store that no process has open, with runs in many states."""
    path = tmp_path / "store"
    shutil.copytree(template, path)
    return path


def dump(path: Path) -> Dump:
    """Return all records of all tables."""
    with lmdb.open(str(path), readonly=True, lock=False, max_dbs=256) as env, env.begin() as read:
        names = [name for name, _ in read.cursor() if not name.startswith(b"__")]
        return {
            name.decode(): dict(read.cursor(env.open_db(name, read, create=False)))
            for name in names
        }


def changes(before: Dump, after: Dump) -> dict[str, set[bytes]]:
    """Return the keys of the records that differ, by table."""
    found = {}
    for table in before.keys() | after.keys():
        old, new = before.get(table, {}), after.get(table, {})
        keys = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
        if keys:
            found[table] = keys
    return found


def number_of(path: Path, run_id: str) -> int | None:
    """Return the admission number of a run."""

    async def main() -> int | None:
        async with open_reader(path) as reader:
            return await reader._ledger.find(run_id)

    return trio.run(main)


OF_RUN = {"runs", "status", "journal", "signals", "dead", "begun", "memo", "reports", "sent"}
"""Tables whose keys begin with the admission number of a run."""
LOG = {"audit", "audited", "counter"}
"""Each operation has an entry in the log of operations. `counter` has the number of
the entry."""
COUNTERS = {b"default\0next", b"default\0outbox", b"default\0clock"}


@attrs.frozen
class Case:
    words: str
    said: str
    tables: str = ""
    """The tables that the command changes, besides the log."""
    run_id: str = ""
    """The run whose records it changes."""


END = "status ended queue unfinished outcomes"
CASES = {
    "signal": Case(
        "order paid --payload 7", "The signal paid of order is delivered.",
        "signals queue", "order",
    ),
    "approve": Case(
        "gated manager --by ann", "Approved manager of gated, by ann.",
        "signals queue", "gated",
    ),
    "reject": Case(
        "gated manager --comment no", "Rejected manager of gated, by",
        "signals queue", "gated",
    ),
    "cancel": Case("behind", "The cancellation of behind is stored.", END, "behind"),
    "pause": Case("behind", "Paused behind.", "status journal unfinished", "behind"),
    "resume": Case("held", "Resumed held.", "status journal queue timers unfinished", "held"),
    "redrive": Case(
        "dead", "Redriven dead. This is its generation 2.",
        "dead dead_counts ended status journal queue unfinished runs", "dead",
    ),
    "forget": Case(
        "ended", "Removed ended and all its records.", "runs status ended ids journal", "ended"
    ),
    "pause-key": Case("zoe", "Paused the key zoe.", "held"),
    "resume-key": Case("frank", "Resumed the key frank.", "held"),
    "pause-all": Case("", "Paused all runs.", "held"),
    "resume-all": Case("", "Resumed all runs, except"),
    "release": Case("alice", "Nothing was released: the key alice is not quarantined."),
    "schedules pause": Case(
        "hourly", "Paused the schedule hourly.", "schedules firings"
    ),
    "schedules resume": Case(
        "stopped", "Resumed the schedule stopped.", "schedules firings"
    ),
    "schedules delete": Case(
        "hourly", "Removed the schedule hourly.", "schedules firings"
    ),
}  # fmt: skip


def test_each_command_that_writes_to_an_idle_store_has_a_case() -> None:
    """A command of a group is tested with a group."""
    writing = {name for name, each in commands().items() if each.writes and each.idle is Idle.YES}
    assert writing - {"groups cancel"} == {*CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_command_changes_only_what_it_says_on_an_idle_store(idle: Path, name: str) -> None:
    case, before = CASES[name], dump(idle)
    number = number_of(idle, case.run_id) if case.run_id else None
    first, *rest = name.split()
    (said,) = lines(first, *rest, idle, *case.words.split())
    assert said.startswith(case.said)
    found = changes(before, dump(idle))
    assert "audit" in found
    assert found["counter"] <= COUNTERS
    assert found.keys() - LOG <= {*case.tables.split()}
    assert {*case.tables.split()} - {"journal", "timers", "runs"} <= found.keys()
    numbers = {
        NUMBER.unpack_from(key, len(b"default\0"))[0]
        for table in found.keys() & OF_RUN
        for key in found[table]
    }
    assert numbers == ({number} if case.run_id else set())
    if case.run_id:
        shown = json.loads("".join(lines("audit", idle, "--json")))
        assert (shown["run_id"], shown["who"]) == (case.run_id, ITSELF.name)
    (entry,) = [json.loads(each) for each in lines("audit", idle, "--json")]
    assert entry["operation"] == commands()[name].name


def test_the_outbox_of_an_idle_store_is_emptied_and_nothing_else(idle: Path) -> None:
    lines("cancel", idle, "behind")
    before = dump(idle)
    said = "Dropped 1 outcome. The store keeps no new outcomes."
    assert lines("outbox", idle, "--discard") == [said]
    assert changes(before, dump(idle)).keys() - LOG == {"outcomes"}


def test_reading_changes_nothing_on_an_idle_store(idle: Path) -> None:
    before = dump(idle)
    assert lines("result", idle, "ended") == ["null"]
    assert invoke("result", idle, "dead").exit_code == 1
    assert invoke("result", idle, "order").exit_code == 1
    for name in ("runs", "keys", "stats", "audit", "approvals", "groups", "schedules", "outbox"):
        assert invoke(name, idle).exit_code == 0
    assert changes(before, dump(idle)) == {}


def test_a_command_that_fails_changes_nothing_on_an_idle_store(idle: Path) -> None:
    """The answer is in the log: a repeat gets the same."""
    before = dump(idle)
    for words, code, complaint in (
        (["cancel", idle, "nobody"], 1, "no run has the id 'nobody'"),
        (["pause", idle, "nobody"], 1, "no run has the id 'nobody'"),
        (["forget", idle, "order"], 1, "order"),
        (["redrive", idle, "ended"], 1, "ended"),
        (["approve", idle, "order", "manager"], 1, "does not wait at the gate 'manager'"),
        (["signal", idle, "ended", "paid"], 1, "ended"),
        (["signal", idle, "order", "paid", "--payload", "{"], 2, "--payload is not JSON"),
        (["call", idle, "Account", "a", "deposit", "1"], 2, "runs code of the application"),
        (["submit", idle, "nap", "--key", "k"], 2, "needs the workflows of the application"),
        (["cancel", idle], 2, "requires a run id, or a filter"),
        (["cancel", idle, "order", "--key", "k"], 2, "a run id or filters, and not both"),
    ):
        result = invoke(*words)
        assert (result.exit_code, complaint in result.stderr) == (code, True), result.output
    assert changes(before, dump(idle)).keys() <= LOG


def test_the_next_open_delivers_the_end_of_a_run_that_was_cancelled(idle: Path) -> None:
    assert lines("cancel", idle, "behind") == ["The cancellation of behind is stored."]
    assert lines("outbox", idle)[0].startswith("1 outcome waiting")
    hook = RecordingHook()

    async def application() -> None:
        async with open_test_runtime(LmdbStore(idle), on_terminal=hook, **OPTIONS):
            await trio.sleep(1)

    trio.run(application, clock=MockClock(autojump_threshold=0))
    assert [each.state for each in hook.of("behind")] == [State.CANCELLED]


def test_a_signal_and_an_approval_are_received_at_the_next_open(idle: Path) -> None:
    lines("signal", idle, "order", "paid", "--payload", '{"amount": 7}')

    async def application() -> Any:
        async with open_test_runtime(LmdbStore(idle), **OPTIONS) as rt:
            await trio.sleep(1)
            status = await rt.status("order")
            assert status is not None
            return status.result

    assert trio.run(application, clock=MockClock(autojump_threshold=0)) is None
    assert json.loads(lines("approvals", idle, "--key", "alice", "--json")[0])["run_id"] == "order"
    lines("approve", idle, "order", "manager", "--by", "ann", "--comment", "fine")
    assert trio.run(application, clock=MockClock(autojump_threshold=0)) == {"amount": 7}
    assert lines("result", idle, "order") == ['{"amount":7}']


APP = "tests.keyrun.operated:app"


def test_runs_are_submitted_to_an_idle_store_with_the_application(idle: Path) -> None:
    words = ["--key", "new", "--run-id", "new", "--app", APP]
    before = dump(idle)
    refused = invoke("submit", idle, "send", *words, "--input", '{"weight": "much"}')
    assert refused.exit_code == 2
    assert "input.weight: expected float" in refused.stderr
    refused = invoke("submit", idle, "sned", *words)
    assert refused.exit_code == 2
    assert "sned" in refused.stderr
    assert changes(before, dump(idle)) == {}
    lines("submit", idle, "send", *words, "--input", '{"weight": 2, "sizes": [1]}')
    found = changes(before, dump(idle))
    assert found.keys() - LOG == {"runs", "ids", "queue", "unfinished"}

    async def application() -> Any:
        async with open_test_runtime(LmdbStore(idle), app=app) as rt:
            await rt.run("new").result()
            return await rt.status("new")

    status = trio.run(application, clock=MockClock(autojump_threshold=0))
    assert (status.result, status.deadline is not None) == (2.0, True)


def test_groups_and_schedules_are_put_into_an_idle_store_with_the_application(idle: Path) -> None:
    when = '{"every": 60}'
    words = ["minutely", "nap", "--key", "n", "--input", "0", "--when", when]
    refused = invoke("schedules", "put", idle, *words)
    assert refused.exit_code == 2
    assert "add --app MODULE:APP" in refused.stderr
    before = dump(idle)
    lines("schedules", "put", idle, *words, "--app", APP)
    assert changes(before, dump(idle)).keys() - LOG == {"schedules", "firings"}
    members = json.dumps([{"workflow": "nap", "input": 5, "key": "g", "delay": 5}])
    lines("groups", "submit", idle, "g", "-", "--app", APP, text=members)
    lines("groups", "cancel", idle, "g")
    status = json.loads(lines("groups", "status", idle, "g", "--json")[0])
    assert status["counts"] == {"cancelled": 1}


class Scramble:
    """A transform that makes payloads unreadable without it."""

    def wrap(self, data: bytes) -> bytes:
        return b"\xc1" + data[::-1]

    def unwrap(self, data: bytes) -> bytes:
        assert data[:1] == b"\xc1"
        return data[:0:-1]


def test_no_plain_payload_is_stored_for_a_run_whose_values_are_encrypted(tmp_path: Path) -> None:
    async def application() -> None:
        async with open_test_runtime(LmdbStore(tmp_path), transform=Scramble(), **OPTIONS) as rt:
            await rt.submit(order, {"id": 1}, key="a", run_id="secret")
            await rt.submit(gated, key="g", run_id="gated")
            await trio.sleep(1)

    trio.run(application, clock=MockClock(autojump_threshold=0))
    before = dump(tmp_path)
    for words in (["--payload", "7"], []):
        result = invoke("signal", tmp_path, "secret", "paid", *words)
        assert result.exit_code == 2
        assert "cannot be decoded here" in result.stderr
    assert changes(before, dump(tmp_path)) == {}
    lines("approve", tmp_path, "gated", "manager")  # a decision is never encrypted


def test_a_repeat_with_the_same_operation_id_changes_nothing(idle: Path) -> None:
    words = ["redrive", idle, "dead", "--operation-id", "op-1"]
    first = lines(*words)
    before = dump(idle)
    assert lines(*words) == first
    assert changes(before, dump(idle)) == {}
    refused = invoke("redrive", idle, "order", "--operation-id", "op-1")
    assert refused.exit_code == 2
    assert "another operation was performed with the id 'op-1'" in refused.stderr


def test_an_answer_is_printed_as_json(idle: Path) -> None:
    assert lines("pause", idle, "behind", "--json") == ['{"result":true}']
    assert lines("pause", idle, "behind", "--json") == ['{"result":false}']
    assert lines("pause", idle, "behind") == [
        "Nothing was paused: behind has ended or is paused already."
    ]


# A live store


def until(found: Callable[[], Any]) -> Any:
    """Return what a function returns as soon as that is true."""
    for _ in range(500):
        if answer := found():
            return answer
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(path: Path, **options: Any) -> Iterator[Any]:
    """Have a store open in a thread."""
    with keyrun.sync.open_runtime(str(path), **{"control": True, **OPTIONS, **options}) as rt:
        yield rt


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store that another process has open."""
    path = tmp_path_factory.mktemp("live") / "store"
    with running_python("from tests.keyrun.operated import main; main()", path) as owner:
        assert line(owner) == "open"
        yield path


def test_a_run_is_submitted_signalled_and_approved_on_a_live_store(live: Path) -> None:
    words = ["order", "--key", "s", "--run-id", "s1", "--input", '{"id": 7}', "--tag", "eu"]
    assert lines("submit", live, *words, "--header", "trace=a=b") == ["Submitted s1, key s."]
    status = json.loads(lines("status", live, "s1", "--json")[0])
    assert (status["tags"], status["headers"]["trace"], status["input"]) == (
        ["eu"],
        "a=b",
        {"id": 7},
    )
    assert lines("signal", live, "s1", "paid", "--payload", "[1, 2]")[0].startswith("The signal")
    gates = until(lambda: lines("approvals", live, "--key", "s", "--json"))
    assert json.loads(gates[0])["gate"] == "manager"
    lines("approve", live, "s1", "manager", "--by", "ann")
    assert lines("result", live, "s1", "--wait", "10") == ["[1,2]"]
    history = [json.loads(each) for each in lines("history", live, "s1", "--json")]
    done = [each["detail"] for each in history if each["event"] == "operation"]
    assert [each.split(" by ")[0] for each in done] == ["submit", "signal", "approve"]


def test_an_input_is_read_as_the_type_that_the_workflow_declares(live: Path) -> None:
    words = ["send", "--key", "p", "--run-id", "p1", "--input"]
    lines("submit", live, *words, '{"weight": 2, "sizes": [1, 2]}')
    assert lines("result", live, "p1", "--wait", "10") == ["2.0"]
    refused = invoke("submit", live, "send", "--key", "p", "--input", '{"weight": "much"}')
    assert refused.exit_code == 2
    assert "input.weight: expected float" in refused.stderr
    same = lines("submit", live, *words, '{"sizes": [2, 1], "weight": 2.0}', "--json")
    assert json.loads(same[0])["newly_submitted"] is False


def test_an_entity_is_called_on_a_live_store(live: Path) -> None:
    words = ["call", live, "Account", "a", "deposit", "5", "--kwarg", 'note="thanks"']
    assert lines(*words) == ['"5 thanks"']


def test_a_group_is_submitted_shown_and_cancelled(live: Path) -> None:
    members = [{"workflow": "nap", "input": 1e6, "key": f"g{number}"} for number in range(3)]
    lines("groups", "submit", live, "g", "-", text=json.dumps(members))
    assert lines("groups", live, "--json")[0].startswith('{"group_id":"g",')
    assert lines("groups", "cancel", live, "g") == ["Runs of g that were cancelled: 3."]
    found = json.loads(lines("groups", "status", live, "g", "--json")[0])
    assert found["counts"] == {"cancelled": 3}
    assert invoke("groups", "status", live, "nothing").exit_code == 1
    assert invoke("groups", "cancel", live, "nothing").exit_code == 1


def test_a_schedule_is_put_and_paused_on_a_live_store(live: Path) -> None:
    when = '{"cron": "30 3 * * *", "timezone": "Europe/Berlin"}'
    words = ["nightly", "nap", "--key", "n", "--input", "0", "--when", when]
    assert lines("schedules", "put", live, *words) == ["The schedule nightly is stored."]
    lines("schedules", "pause", live, "nightly")
    (found,) = map(json.loads, lines("schedules", live, "--json"))
    assert (found["schedule_id"], found["paused"]) == ("nightly", True)
    lines("schedules", "delete", live, "nightly")
    assert lines("schedules", live, "--json") == []


@pytest.mark.parametrize("words", [["runs"], ["keys"], ["stats"], ["audit"], ["outbox"]])
def test_a_store_is_read_at_its_address(live: Path, words: list[str]) -> None:
    lines("submit", live, "nap", "--key", "read", "--run-id", "read", "--input", "1e6")
    address = f"unix:{live / 'control.sock'}"
    here, there = (
        [json.loads(each) for each in lines(*words, store, "--json")] for store in (live, address)
    )
    assert here
    for each in (*here, *there):
        each.pop("waiting_until", None)  # only the owner knows it
    assert there == here


def test_one_run_is_read_at_the_address_of_a_store(live: Path) -> None:
    lines("submit", live, "nap", "--key", "one", "--run-id", "one", "--input", "1e6")
    address = f"unix:{live / 'control.sock'}"
    until(lambda: "timer set" in lines("history", live, "one")[-1])
    assert lines("history", address, "one") == lines("history", live, "one")
    for name in ("status", "why", "progress"):
        (said,) = map(json.loads, lines(name, address, "one", "--json"))
        assert (said["run_id"], said["key"]) == ("one", "one")
    assert invoke("status", address, "nobody").exit_code == 1


def test_a_token_file_is_used_for_an_address(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("# comment\n\nreader-token-0123456 read r\nadmin-token-01234567 admin a\n")
    tokens.chmod(0o600)
    port = free_port()
    control = Control(http=f"127.0.0.1:{port}", token_file=tokens)
    with running(tmp_path / "store", control=control):
        address = f"http://127.0.0.1:{port}"
        assert lines("runs", address, "--token-file", tokens, "--json") == []
        refused = invoke("pause-all", address, "--token-file", tokens)
        assert (refused.exit_code, "requires the role operate" in refused.stderr) == (4, True)
        admin = {"KEYRUN_TOKEN": "admin-token-01234567"}
        assert lines("pause-all", address, env=admin) == ["Paused all runs."]
        refused = invoke("runs", address)
        assert (refused.exit_code, "rejected the client" in refused.stderr) == (4, True)
        assert "token-0123456" not in refused.stderr
        (entry,) = map(json.loads, lines("audit", address, "--json", env=admin))
        assert (entry["who"], entry["operation"]) == ("a", "pause_all")


def test_an_address_without_a_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating, "CALL_TIMEOUT", 0.1)
    refused = invoke("cancel", f"http://127.0.0.1:{free_port()}", "order")
    assert refused.exit_code == 4
    assert "no process answered at http://127.0.0.1" in refused.stderr


def test_an_owner_without_a_control_plane_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operating, "PATIENCE", 0.1)
    with running(tmp_path, control=None):
        refused = invoke("cancel", tmp_path, "order")
    assert refused.exit_code == 4
    assert f"the process {os.getpid()} has {tmp_path} open" in refused.stderr
    assert "control=True" in refused.stderr


def test_another_namespace_is_not_operated(tmp_path: Path) -> None:
    with running(tmp_path, namespace="eu"):
        refused = invoke("pause-all", tmp_path)
        assert refused.exit_code == 2
        assert "serves the namespace 'eu', not 'default'" in refused.stderr
        assert lines("pause-all", tmp_path, "--namespace", "eu") == ["Paused all runs."]


def test_a_command_waits_for_a_process_that_is_about_to_serve(tmp_path: Path) -> None:
    with running(tmp_path):
        socket, hidden = tmp_path / "control.sock", tmp_path / "hidden"
        socket.rename(hidden)
        timer = threading.Timer(0.2, hidden.rename, [socket])
        timer.start()
        assert lines("pause-all", tmp_path) == ["Paused all runs."]
        timer.join()


# In bulk


def runs_in_log(path: Path) -> set[str]:
    """Return the runs that the log of operations names."""
    entries = map(json.loads, lines("audit", path, "--json"))
    return {each["run_id"] for each in entries if each["run_id"]}


def test_runs_that_match_are_previewed_and_changed(idle: Path) -> None:
    before = dump(idle)
    shown = invoke("cancel", idle, "--tag", "eu", "--preview")
    assert [each.split()[0] for each in shown.stdout.splitlines()] == ["run", "order", "behind"]
    (found,) = map(json.loads, lines("cancel", idle, "--tag", "eu", "--preview", "--json"))
    assert found == {"preview": True, "matched": 2, "examples": ["order", "behind"]}
    refused = invoke("cancel", idle, "--tag", "eu")
    assert refused.exit_code == 2
    assert "nothing was changed: 2 runs match; add --yes to cancel them" in refused.stderr
    assert changes(before, dump(idle)) == {}
    assert lines("cancel", idle, "--tag", "eu", "--yes") == ["2 runs cancelled."]
    assert changes(before, dump(idle))["status"]
    assert lines("cancel", idle, "--tag", "eu", "--yes") == ["0 runs cancelled."]
    assert runs_in_log(idle) == {"order", "behind"}


def test_a_person_is_asked_on_a_terminal(idle: Path) -> None:
    before = dump(idle)
    for answer, code, said in (
        ("n\n", 1, "nothing was changed"),
        ("\n", 1, "nothing was changed"),
        ("y\n", 0, "1 run removed."),
    ):
        assert changes(before, dump(idle)) == {}
        result = invoke("forget", idle, "--workflow", "nap", columns=80, text=answer)
        assert "Forget 1 run? [y/N]" in result.output
        assert (result.exit_code, said in result.output) == (code, True)


def test_a_bulk_that_matches_nothing_changes_nothing(idle: Path) -> None:
    result = invoke("redrive", idle, "--key", "nobody")
    assert (result.exit_code, result.stderr) == (0, "No runs match.\n")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--state", "succeeded"], "no run in the state succeeded can be changed by cancel"),
        (["--yes"], "requires a run id, or a filter"),
        (["--preview"], "requires a run id, or a filter"),
    ],
)
def test_a_bulk_that_cannot_be_meant_is_refused(
    idle: Path, words: list[str], complaint: str
) -> None:
    result = invoke("cancel", idle, *words)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_gates_that_match_are_decided(idle: Path) -> None:
    before = dump(idle)
    words = ["manager", "--state", "waiting"]
    shown = invoke("approve", idle, *words, "--preview")
    assert [each.split()[0] for each in shown.stdout.splitlines()] == ["run", "gated"]
    refused = invoke("approve", idle, *words)
    assert "nothing was changed: 1 run matches; add --yes to approve it" in refused.stderr
    assert changes(before, dump(idle)) == {}
    assert lines("approve", idle, *words, "--by", "ann", "--yes") == ["1 run approved."]
    assert set(changes(before, dump(idle))) >= {"signals"}
    assert lines("reject", idle, "other", "--state", "waiting", "--yes") == ["0 runs rejected."]
    assert lines("release", idle, "--workflow", "nap", "--yes") == ["0 runs released."]
    assert runs_in_log(idle) == {"gated"}


def test_runs_that_match_are_signalled(idle: Path) -> None:
    before = dump(idle)
    words = ["signal", idle, "paid", "--payload", '{"euro": 7}', "--tag", "eu"]
    (found,) = map(json.loads, lines(*words, "--preview", "--json"))
    assert found["examples"] == ["order", "behind"]
    refused = invoke(*words, "--yes")
    assert refused.exit_code == 2
    assert "signal stores a value for each run that matches" in refused.stderr
    assert changes(before, dump(idle)) == {}
    words += ["--app", APP, "--yes"]
    assert lines(*words) == ["2 runs signalled."]
    assert runs_in_log(idle) == {"order", "behind"}
    assert len(changes(before, dump(idle))["signals"]) == 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["paid"], "signal requires a run id, or a filter"),
        (["--tag", "eu"], "Missing argument 'NAME'"),
        (["order", "paid", "now"], "unexpected extra argument"),
        (["order", "paid", "--tag", "eu"], "give a run id or filters, and not both"),
        (["paid", "--tag", "eu", "--signal-id", "s"], "--signal-id requires a run id"),
        (["paid", "--tag", "eu", "--payload", "{"], "is not JSON"),
    ],
)
def test_a_signal_in_bulk_that_cannot_be_meant_is_refused(
    idle: Path, words: list[str], complaint: str
) -> None:
    before = dump(idle)
    result = invoke("signal", idle, *words)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert changes(before, dump(idle)) == {}


def test_an_interrupted_signal_in_bulk_says_how_to_continue(
    idle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PAGE", 1)
    perform = operating.IdleStore.perform

    async def interrupted(self: Any, operation: Any, arguments: Any, *more: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep(0.05)
        return await perform(self, operation, arguments, *more)

    words = ["signal", idle, "paid", "--payload", '{"a": 7}', "--replace", "--tag", "eu"]
    with monkeypatch.context() as patched:
        patched.setattr(operating.IdleStore, "perform", interrupted)
        result = invoke(*words, "--app", APP, "--yes")
    assert (result.exit_code, result.stdout) == (130, "1 run signalled.\n"), result.output
    again = shlex.split(result.stderr.splitlines()[1])
    assert lines(*again[1:]) == ["2 runs signalled."]
    entries = map(json.loads, lines("audit", idle, "--json"))
    assert sorted(each["run_id"] for each in entries if each["run_id"]) == ["behind", "order"]


def test_a_run_that_cannot_be_changed_is_named(idle: Path) -> None:
    """The run was compensated, so a redrive is refused."""
    before = dump(idle)
    result = invoke("redrive", idle, "--state", "failed", "--yes", "--json")
    (found,) = map(json.loads, result.stdout.splitlines())
    assert (found["changed"], found["failed"], found["complete"]) == (1, 0, True)
    assert changes(before, dump(idle))


def test_an_interrupted_bulk_says_how_to_continue(
    idle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PAGE", 1)
    perform = operating.IdleStore.perform

    async def interrupted(self: Any, operation: Any, arguments: Any, *more: Any) -> Any:
        if operation.name == "bulk":
            signal.raise_signal(signal.SIGINT)
            await trio.sleep(0.05)
        return await perform(self, operation, arguments, *more)

    words = ["pause", idle, "--workflow", "nap", "--since", "2020-01-01", "--yes"]
    with monkeypatch.context() as patched:
        patched.setattr(operating.IdleStore, "perform", interrupted)
        result = invoke(*words)
    assert result.exit_code == 130, result.output
    assert result.stdout == "1 run paused.\n"
    told = result.stderr.splitlines()
    assert told[0] == "Interrupted. To continue, without changing a run twice:"
    again = shlex.split(told[1])
    assert again[:4] == ["keyrun", "pause", str(idle), "--workflow"]
    before = dump(idle)
    assert lines(*again[1:]) == ["2 runs paused."]
    assert runs_in_log(idle) == {"behind", "held", "next"}
    assert changes(before, dump(idle))


def test_a_bulk_works_on_a_live_store(live: Path) -> None:
    for number in range(5):
        words = ["--key", f"b{number}", "--run-id", f"b{number}", "--tag", "bulk", "--input", "1e6"]
        lines("submit", live, "nap", *words)
    assert lines("pause", live, "--tag", "bulk", "--yes") == ["5 runs paused."]
    assert lines("cancel", live, "--tag", "bulk", "--state", "paused", "--yes") == [
        "5 runs cancelled."
    ]
    assert lines("forget", live, "--tag", "bulk", "--yes") == ["5 runs removed."]
    for number in range(3):
        words = ["--key", f"g{number}", "--run-id", f"g{number}", "--tag", "gates"]
        lines("submit", live, "gated", *words)
    assert lines("signal", live, "other", "--tag", "gates", "--yes") == ["3 runs signalled."]
    while len(lines("runs", live, "--tag", "gates", "--state", "waiting", "--json")) < 3:
        time.sleep(0.01)
    words = ["manager", "--tag", "gates", "--by", "ann", "--yes"]
    assert lines("approve", live, *words) == ["3 runs approved."]


# Derived from the table


def test_each_command_has_arguments_of_known_kinds() -> None:
    for name, operation in commands().items():
        for parameter in operation.parameters.values():
            assert isinstance(kind_of(parameter), ArgumentKind), (name, parameter.name)
            assert parameter.about, (name, parameter.name)
