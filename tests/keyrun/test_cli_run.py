"""`keyrun run`: the result on stdout, everything else beside it, and nothing is lost."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result

from tests.keyrun.cli import invoke, lines, make_store, shell
from tests.storage.processes import line, running_python
from tests.storage.test_ownership import OWNER

SHOP = """
import os
import attrs, trio
from keyrun import Context, PermanentError, Retry, machine, step, workflow
from keyrun import Cancel, Fail, Succeed

@attrs.frozen
class Order:
    id: int
    name: str = "nobody"

@step(retry=Retry.fixed(max_attempts=3, delay=0.01))
async def charge(order: Order) -> str:
    print("this is printed by a step")
    if order.id == 13:
        raise PermanentError("no luck")
    return f"receipt for {order.id}"

@workflow
async def checkout(ctx: Context, order: Order) -> Order:
    return Order(order.id, await ctx.step(charge, order))

@workflow
async def hello(ctx: Context) -> str:
    return f"hello {ctx.key}"

@machine()
async def judge(turn):
    match turn.payload:
        case "cancel": return Cancel("not today")
        case "fail": return Fail("no")
    return Succeed([1, (2, 3)])

@step
async def wait() -> None:
    while not os.path.exists("released"):
        print("waiting", flush=True)
        await trio.sleep(0.05)

@workflow
async def patient(ctx: Context, rounds: int) -> str:
    await ctx.step(note, "first")
    await ctx.step(wait)
    await ctx.step(note, "second")
    return "done"

@step
async def note(text: str) -> None:
    with open("notes", "a") as file:
        file.write(text + "\\n")

def plain() -> None: ...
number = 7
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a module in it, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "shop.py").write_text(SHOP)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


def run(target: str, *words: object, text: str = "") -> Result:
    return invoke("run", target, "--key", "alice", *words, text=text)


def test_the_result_is_json_on_stdout_and_nothing_else_is(here: Path) -> None:
    result = run("shop:checkout", "--input", '{"id": 7}')
    assert result.exit_code == 0, result.output
    assert result.stdout == '{"id":7,"name":"receipt for 7"}\n'
    assert "this is printed by a step" in result.stderr
    assert "step completed charge" in result.stderr
    assert not list(here.glob("**/data.mdb"))


def test_a_workflow_without_input_needs_none(here: Path) -> None:
    assert run("shop:hello", "-q").stdout == '"hello alice"\n'
    assert run("shop:hello", "-q").stderr == ""


def test_the_input_can_come_from_a_file_or_from_stdin(here: Path) -> None:
    (here / "order.json").write_text('{"id": 8}')
    assert json.loads(run("shop:checkout", "--input", "@order.json").stdout)["id"] == 8
    assert json.loads(run("shop:checkout", "--input", "-", text='{"id": 9}').stdout)["id"] == 9


def test_how_it_ends_is_the_exit_code(here: Path) -> None:
    assert run("shop:judge").stdout == "[1,[2,3]]\n"
    cancelled = run("shop:judge", "--input", '"cancel"')
    assert (cancelled.exit_code, cancelled.stdout) == (3, "")
    assert "not today" in cancelled.stderr
    failed = run("shop:judge", "--input", '"fail"', "-q")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "is failed. no" in failed.stderr
    failed = run("shop:checkout", "--input", '{"id": 13}')
    assert failed.exit_code == 1
    assert "no luck" in failed.stderr


def test_the_same_run_id_gives_the_stored_outcome(here: Path) -> None:
    words = ["--store", "state", "--run-id", "order-7", "--input", '{"id": 7}']
    first = run("shop:checkout", *words, "--tag", "eu", "--header", "trace=abc")
    again = run("shop:checkout", *words)
    assert first.stdout == again.stdout != ""
    assert "which was submitted before" in again.stderr
    assert "printed by a step" not in again.stderr
    stored = json.loads(lines("status", "state", "order-7", "--json")[0])
    assert (stored["tags"], stored["headers"]) == (["eu"], {"trace": "abc"})
    other = run("shop:checkout", *words[:-1], '{"id": 8}')
    assert other.exit_code == 2
    assert "was submitted with another input" in other.stderr


@pytest.mark.parametrize(
    ("target", "words", "message"),
    [
        ("shop", [], "name the workflow as module:workflow, got 'shop'"),
        (":checkout", [], "name the workflow as module:workflow"),
        ("nowhere:checkout", [], "there is no module 'nowhere'"),
        ("shop.deep:checkout", [], "there is no module 'shop.deep'"),
        ("shop:nothing", [], "has no 'nothing'; its workflows are: checkout, hello"),
        ("shop:plain", [], "has a 'plain', which is no workflow but a function"),
        ("shop:Order", [], "has a 'Order', which is no workflow but a class"),
        ("shop:number", [], "has a 'number', which is no workflow but of type int"),
        ("shop:checkout", ["--input", '{"id": }'], "not JSON: Expecting value at line 1, column 8"),
        ("shop:checkout", ["--input", "[NaN]"], "NaN is no number"),
        ("shop:checkout", ["--input", "@missing"], "cannot read missing"),
        ("shop:checkout", ["--input", '{"id": "x"}'], "does not fit the workflow 'checkout'"),
        ("shop:checkout", ["--input", "{}"], "Order needs the field 'id'"),
        ("shop:checkout", [], "'checkout' needs an --input"),
        ("shop:hello", ["--input", "1"], "'hello' takes no input"),
        ("shop:hello", ["--run-id", "#"], "run_id must be 1 to 128 of"),
        ("shop:hello", ["--key", ""], "key must have 1 to 255 bytes"),
        ("shop:hello", ["--header", "x"], "a header is NAME=VALUE, got 'x'"),
        ("shop:hello", ["--header", "keyrun.x=1"], "are reserved"),
        ("shop:hello", ["--namespace", "a b"], "namespace must be 1 to 64 of"),
        ("shop:hello", ["--with", "nowhere"], "there is no module 'nowhere'"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(
    here: Path, target: str, words: list[str], message: str
) -> None:
    result = run(target, *words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (told,) = result.stderr.splitlines()
    assert message in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def broken(:", "SyntaxError: invalid syntax"),
        ("\n\n1 / 0", "ZeroDivisionError: division by zero"),
        ("import missing_library", "No module named 'missing_library'"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_the_place(
    here: Path, source: str, message: str
) -> None:
    (here / "bad.py").write_text(source)
    result = run("bad:checkout")
    assert result.exit_code == 2
    (told,) = result.stderr.splitlines()
    assert message in told
    assert "bad.py, line" in told


@pytest.mark.parametrize(
    ("place", "message"),
    [("shop.py", "is a file"), (".", "is neither empty nor a Keyrun store")],
)
def test_a_place_for_no_store_is_refused(here: Path, place: str, message: str) -> None:
    result = run("shop:hello", "--store", place)
    assert result.exit_code == 4
    assert message in result.stderr
    assert sorted(file.name for file in here.glob("*.*")) == ["shop.py"]


def test_a_store_that_another_process_owns_is_left_to_it(here: Path) -> None:
    with running_python(OWNER, here / "state", "inline") as owner:
        assert line(owner) == "open"
        result = run("shop:hello", "--store", "state")
    assert result.exit_code == 4
    (told,) = result.stderr.splitlines()
    assert f"process {owner.pid} has it open" in told


def test_runs_whose_code_is_not_there_are_not_harmed(here: Path) -> None:
    make_store(here / "state")
    before = lines("runs", "state", "--json")
    (here / "small.py").write_text(
        "from keyrun import workflow\n@workflow\nasync def hello(ctx): return 1\n"
    )
    result = run("small:hello", "--store", "state")
    assert result.exit_code == 2
    assert "unfinished runs of 'checkout' version 1" in result.stderr
    assert "--with MODULE" in result.stderr
    assert lines("runs", "state", "--json") == before


def test_other_unfinished_runs_of_the_store_go_on_meanwhile(here: Path) -> None:
    make_store(here / "state")
    (here / "small.py").write_text(
        "from keyrun import workflow\n@workflow\nasync def hello(ctx): return 1\n"
    )
    result = run("small:hello", "--store", "state", "--with", "tests.keyrun.cli")
    assert result.exit_code == 0, result.output
    assert "3 other unfinished runs of this store will go on meanwhile" in result.stderr


def test_a_run_that_needs_a_person_is_not_waited_for(here: Path) -> None:
    (here / "fickle.py").write_text(
        "import os\n"
        "from keyrun import step, workflow\n"
        "@step\nasync def one(): return 1\n"
        "@step\nasync def two():\n"
        "    if not os.path.exists('again'): os._exit(9)\n"
        "@workflow\nasync def change(ctx):\n"
        "    await ctx.step(two if os.path.exists('again') else one)\n"
        "    await ctx.step(two)\n"
    )
    words = ["run", "fickle:change", "--key", "k", "--store", "state", "--run-id", "r"]
    assert shell(*words, cwd=here).returncode == 9
    (here / "again").touch()
    done = shell(*words, cwd=here)
    assert done.returncode == 5, done.stderr
    assert "quarantined" in done.stderr


def started(here: Path, *words: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [Path(sys.executable).parent / "keyrun", "run", "shop:patient", "--key", "k", *words],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    told_after(process, "waiting")
    return process


def told_after(process: "subprocess.Popen[str]", text: str) -> str:
    """Read what it says until the line with `text`."""
    assert process.stderr is not None
    while text not in (told := process.stderr.readline()):
        assert told, "it ended"
    return told


def go_on(here: Path, told: str) -> None:
    """What the interrupted command said about going on is true."""
    assert "is kept, and goes on with:" in told
    (command,) = [said for said in told.splitlines() if said.startswith("  keyrun run")]
    done = shell(*shlex.split(command)[1:], cwd=here)
    assert (done.returncode, done.stdout) == (0, '"done"\n'), done.stderr
    assert (here / "notes").read_text() == "first\nsecond\n"


def test_ctrl_c_lets_the_running_step_finish_and_says_how_the_run_goes_on(here: Path) -> None:
    process = started(here, "--input", "1")
    process.send_signal(signal.SIGINT)
    assert "running steps may finish" in told_after(process, "once more stops at once")
    (here / "released").touch()
    out, told = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert (here / "notes").read_text() == "first\n"
    go_on(here, told)


def test_a_second_ctrl_c_stops_at_once_and_nothing_is_lost(here: Path) -> None:
    process = started(here, "--input", "1", "--store", "state")
    process.send_signal(signal.SIGTERM)
    told_after(process, "once more stops at once")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    (here / "released").touch()
    go_on(here, told)
