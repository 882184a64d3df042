"""`keyrun run`: the result on stdout, everything else beside it, and nothing is lost."""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import Result

from keyrun.cli.run_command import print_command
from tests.keyrun.cli import invoke, lines, make_store, shell
from tests.storage.processes import line, running_python
from tests.storage.test_ownership import OWNER

SHOP = """
import os
from datetime import datetime
from decimal import Decimal
import attrs, trio
from pydantic import BaseModel
from keyrun import Context, Limits, PermanentError, Retry, machine, step, workflow
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

class Parcel(BaseModel):
    weight: Decimal
    due: datetime
    tags: set[str] = set()

@workflow
async def deliver(ctx: Context, parcel: Parcel) -> Parcel:
    return parcel

@workflow
async def hello(ctx: Context) -> str:
    return f"hello {ctx.key}"

@machine()
async def judge(turn):
    match turn.payload:
        case "cancel": return Cancel("not today")
        case "fail": return Fail("no")
    return Succeed([1, (2, 3)])

def deep(order):
    return order["amount"]

@workflow
async def raises(ctx: Context) -> None:
    deep({})

@workflow
async def parent(ctx: Context) -> None:
    await ctx.child(raises)

@step(retry=Retry.fixed(max_attempts=100, delay=0.02))
async def late() -> None:
    raise ConnectionError("reset")

@workflow(limits=Limits(run_timeout=0.1))
async def times_out(ctx: Context) -> None:
    await ctx.step(late)

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
    assert " failed: no" in failed.stderr
    failed = run("shop:checkout", "--input", '{"id": 13}')
    assert failed.exit_code == 1
    assert "no luck" in failed.stderr
    cancelled = run("shop:judge", "--input", '"cancel"', "-q")
    assert cancelled.stderr.endswith(" was cancelled: not today\n")


@pytest.mark.parametrize("quiet", [[], ["-q"]])
@pytest.mark.parametrize(
    ("target", "words", "place", "error"),
    [
        ("shop:checkout", ["--input", '{"id": 13}'], "in charge\n", "PermanentError: no luck"),
        ("shop:raises", [], "in deep\n", "KeyError: 'amount'"),
        ("shop:times_out", [], "in late\n", "ConnectionError: reset"),
        ("shop:parent", [], "in deep\n", "KeyError: 'amount'"),
    ],
    ids=["step", "workflow", "cause", "child"],
)
def test_a_run_that_fails_prints_its_traceback(
    here: Path, target: str, words: list[str], place: str, error: str, quiet: list[str]
) -> None:
    failed = run(target, *words, *quiet)
    assert (failed.exit_code, failed.stdout) == (1, "")
    first, _, rest = failed.stderr.partition("Traceback (most recent call last):\n")
    assert first or quiet
    assert place in rest
    assert f"\n{error}\n" in rest.replace("keyrun.runtime.errors.", "")


def test_the_traceback_of_an_internal_error_is_printed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import logging

    logger = logging.getLogger("keyrun")

    async def fail(*args: object) -> None:
        try:
            raise RuntimeError("a bug")
        except RuntimeError:
            logger.exception("the actor of a key crashed")
            logger.error("a log line without a traceback")

    monkeypatch.setattr("keyrun.cli.execution._approve", fail)
    result = run("shop:hello", "--approve", "gate")
    assert result.exit_code == 0
    assert "the actor of a key crashed\nTraceback (most recent call last):\n" in result.stderr
    assert "RuntimeError: a bug" in result.stderr
    assert "without a traceback" not in result.stderr
    assert not any(type(each).__name__ == "_InternalErrors" for each in logger.handlers)


def test_the_same_run_id_gives_the_stored_outcome(here: Path) -> None:
    words = ["--store", "state", "--run-id", "order-7", "--input", '{"id": 7}']
    first = run("shop:checkout", *words, "--tag", "eu", "--header", "trace=abc")
    again = run("shop:checkout", *words)
    assert first.stdout == again.stdout != ""
    assert ", submitted earlier" in again.stderr
    assert "printed by a step" not in again.stderr
    stored = json.loads(lines("status", "state", "order-7", "--json")[0])
    assert (stored["tags"], stored["headers"]) == (["eu"], {"trace": "abc"})
    other = run("shop:checkout", *words[:-1], '{"id": 8}')
    assert other.exit_code == 2
    assert "was submitted with another input" in other.stderr


def test_the_input_of_a_model_is_validated_and_its_result_is_plain_data(here: Path) -> None:
    given = {"weight": "1.50", "due": "2026-01-02T00:00:00Z", "tags": ["b", "a"]}
    words = ["--store", "state", "--run-id", "r", "-q"]
    result = run("shop:deliver", "--input", json.dumps(given), *words)
    back = {"weight": "1.50", "due": "2026-01-02T00:00:00+00:00", "tags": ["a", "b"]}
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == back
    status = invoke("status", "state", "r", "--json").stdout
    assert json.loads(status)["result"] == back


@pytest.mark.parametrize(
    ("target", "words", "message"),
    [
        ("shop", [], "must be MODULE:WORKFLOW, such as shop:checkout, got 'shop'"),
        (":checkout", [], "must be MODULE:WORKFLOW"),
        ("nowhere:checkout", [], "no module named 'nowhere' in"),
        ("shop.deep:checkout", [], "no module named 'shop.deep' in"),
        (
            "shop:nothing",
            [],
            "'nothing' in module 'shop' does not exist; the workflows of the module are: checkout",
        ),
        ("shop:plain", [], "'plain' in module 'shop' is a function, not a workflow"),
        ("shop:Order", [], "'Order' in module 'shop' is a class, not a workflow"),
        ("shop:number", [], "'number' in module 'shop' is of type int, not a workflow"),
        ("shop:checkout", ["--input", '{"id": }'], "not JSON: Expecting value at line 1, column 8"),
        ("shop:checkout", ["--input", "[NaN]"], "NaN is not a JSON number"),
        ("shop:checkout", ["--input", "@missing"], "cannot read missing"),
        (
            "shop:checkout",
            ["--input", '{"id": "x"}'],
            "not match the input type of workflow 'checkout'",
        ),
        ("shop:checkout", ["--input", "{}"], "checkout': input.id: this field is required"),
        ("shop:checkout", [], "'checkout' requires an input; add --input JSON"),
        ("shop:deliver", [], "'deliver' requires an input; add --input JSON"),
        (
            "shop:deliver",
            ["--input", '{"weight": "x"}'],
            "input type of workflow 'deliver': input.weight: Input should be a valid decimal",
        ),
        ("shop:hello", ["--input", "1"], "'hello' takes no input, got 1; remove --input"),
        ("shop:hello", ["--run-id", "#"], "run_id must be 1 to 128 of"),
        ("shop:hello", ["--key", ""], "key must have 1 to 255 bytes"),
        ("shop:hello", ["--header", "x"], "--header requires NAME=VALUE, got 'x'"),
        ("shop:hello", ["--header", "keyrun.x=1"], "are reserved"),
        ("shop:hello", ["--namespace", "a b"], "namespace must be 1 to 64 of"),
        ("shop:hello", ["--with", "nowhere"], "no module named 'nowhere' in"),
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
    told = result.stderr.splitlines()[-1]
    assert told.startswith("Error: cannot import 'bad': ")
    assert message in told
    assert "bad.py, line" in told


@pytest.mark.parametrize(
    ("place", "message"),
    [("shop.py", "is a file"), (".", "the directory is not empty; give another")],
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
    assert "3 other runs resume in this store while this command runs." in result.stderr


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


@contextmanager
def started(here: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `patient` until it waits. It is killed at the end of the block."""
    with subprocess.Popen(
        [Path(sys.executable).parent / "keyrun", "run", "shop:patient", "--key", "k", *words],
        cwd=here,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            told_after(process, "waiting")
            yield process
        finally:
            process.kill()


def told_after(process: "subprocess.Popen[str]", text: str) -> str:
    """Read what it says until the line with `text`."""
    assert process.stderr is not None
    while text not in (told := process.stderr.readline()):
        assert told, "it ended"
    return told


def go_on(here: Path, told: str) -> None:
    """What the interrupted command said about going on is true."""
    assert "is stored. To resume it:" in " ".join(told.split())
    command = told.partition("resume it:\n")[2]
    assert command.startswith("  keyrun run")
    (line,) = command.splitlines()
    done = shell(*shlex.split(line)[1:], cwd=here)
    assert (done.returncode, done.stdout) == (0, '"done"\n'), done.stderr
    assert (here / "notes").read_text() == "first\nsecond\n"


def test_ctrl_c_lets_the_running_step_finish_and_says_how_the_run_resumed(here: Path) -> None:
    with started(here, "--input", "1") as process:
        process.send_signal(signal.SIGINT)
        assert "the running steps have finished" in told_after(process, "again to stop at once")
        (here / "released").touch()
        out, told = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert (here / "notes").read_text() == "first\n"
    go_on(here, told)


def test_a_second_ctrl_c_stops_at_once_and_nothing_is_lost(here: Path) -> None:
    with started(here, "--input", "1", "--store", "state") as process:
        process.send_signal(signal.SIGTERM)
        told_after(process, "again to stop at once")
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    (here / "released").touch()
    go_on(here, told)


def test_the_command_that_resumes_a_run_can_be_pasted_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["keyrun", "run", "shop:patient", "--input", '{"a": "b c"}', "--store", "/" + "x" * 80]
    print_command(words)
    assert capsys.readouterr().err == f"  {shlex.join(words)}\n"
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    print_command(words)
    shown = capsys.readouterr().err
    assert shlex.split(shown.replace("\\\n", "")) == words
    assert sorted(map(len, shown.splitlines()))[-2] <= 60
