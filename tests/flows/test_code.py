"""The code node: JSON in, JSON out, and no process left behind."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from keyrun import FailureKind, Retry
from keyrun.errors import MissingExtra
from keyrun.flows.errors import NodeFailed
from keyrun.flows.nodes.code import LANGUAGES, Language, code
from tests.flows.nodes import failure_of, run_node

ECHO_WASM = """
(module
  (import "wasi_snapshot_preview1" "fd_read"
    (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write"
    (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 16))
    (i32.store (i32.const 4) (i32.const 65536))
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (i32.store (i32.const 4) (i32.load (i32.const 8)))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))
"""
FLOOD_WASM = """
(module
  (import "wasi_snapshot_preview1" "fd_write"
    (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 16))
    (i32.store (i32.const 4) (i32.const 65536))
    (loop (br_if 0 (i32.eqz
      (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))))
"""
SPINNING: dict[Language, str] = {
    "python": "main = print\nwhile True: pass",
    "javascript": "for (;;) ;",
    "wasm": '(module (func (export "_start") (loop (br 0))))',
}
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
EACH = [pytest.param(each, marks=needs_node if each == "javascript" else ()) for each in LANGUAGES]


def children() -> set[str]:
    """Return the child processes of this process, also those that nobody has waited for."""
    found = set()
    for each in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found.update(each.read_text().split())
    return found


@pytest.fixture(autouse=True)
def no_child_is_left() -> Any:
    before = children()
    yield
    assert children() <= before


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def gone(pid: int) -> None:
    with trio.fail_after(10):
        while alive(pid):
            await trio.sleep(0.01)


async def test_main_gets_the_arguments_and_its_result_is_the_output() -> None:
    node = code(
        "def main(data): return {'sum': sum(data['numbers'])}", args={"numbers": "{{ input }}"}
    )
    assert await run_node(node, [1, 2, 3]) == {"sum": 6}


async def test_without_arguments_main_gets_what_templates_know() -> None:
    node = code("def main(data): return data")
    known = await run_node(node, {"é": None}, output=1.5, outputs={"a": [True]}, port="p")
    assert known == {
        "input": {"é": None},
        "output": 1.5,
        "outputs": {"a": [True]},
        "port": "p",
        "error": None,
        "failures": {},
        "iteration": 0,
    }


@needs_node
async def test_javascript_may_be_async() -> None:
    source = "async function main(data) { return { sum: data.numbers.reduce((a, b) => a + b) } }"
    node = code(source, language="javascript", args={"numbers": "{{ input }}"})
    assert await run_node(node, [1, 2, 3]) == {"sum": 6}


@needs_node
async def test_javascript_that_returns_nothing_gives_null() -> None:
    assert await run_node(code("const main = () => {}", language="javascript")) is None


async def test_webassembly_reads_its_argument_and_writes_its_result() -> None:
    node = code(ECHO_WASM, language="wasm", args={"numbers": "{{ input }}"})
    assert await run_node(node, [1, 2, 3]) == {"numbers": [1, 2, 3]}


async def test_what_the_code_prints_is_not_its_result() -> None:
    node = code("import os\ndef main(data):\n  print('hello')\n  os.write(1, b'x')\n  return 7")
    assert await run_node(node) == 7


async def test_the_code_has_no_standard_input_of_its_own() -> None:
    failure = await failure_of(code("def main(data): return input()"))
    assert "EOFError" in failure.reason


@pytest.mark.parametrize(
    ("language", "source", "said"),
    [
        (
            "python",
            "def main(data):\n  return 1 / 0",
            "ZeroDivisionError: division by zero (line 2",
        ),
        ("python", "raise ValueError('early')\nmain = print", "ValueError: early (line 1"),
        ("python", "def main(data): return {1, 2}", "Object of type set is not JSON"),
        ("python", "def main(data): return float('nan')", "not JSON compliant"),
        ("python", "import os; os._exit(3); main = 1", "the code exited with 3 without a result"),
        ("python", "import os; os.kill(os.getpid(), 9); main = 1", "was killed by signal 9"),
        (
            "python",
            "import os, sys\nsys.stderr.write('last words'); sys.stderr.flush(); os._exit(1)\n"
            "main = print",
            "without a result: last words",
        ),
        pytest.param(
            "javascript", "function main() { throw new Error('no') }", "Error: no", marks=needs_node
        ),
        pytest.param(
            "javascript",
            "function main() { process.exit(4) }",
            "without a result",
            marks=needs_node,
        ),
        ("wasm", '(module (func (export "_start") unreachable))', "unreachable"),
    ],
)
async def test_code_that_fails_is_tried_again_and_says_why(
    language: Language, source: str, said: str
) -> None:
    failure = await failure_of(code(source, language=language))
    assert said in failure.reason
    assert failure.attempt == 3


@pytest.mark.parametrize(
    ("language", "source", "said"),
    [
        ("python", "def main(data): raise PermanentError('never')", "PermanentError: never"),
        ("python", "main = 1; del main", "the code defines no function main(data)"),
        pytest.param(
            "javascript",
            "function main() { throw new PermanentError('never') }",
            "PermanentError: never",
            marks=needs_node,
        ),
        pytest.param("javascript", "function main( {", "SyntaxError", marks=needs_node),
        pytest.param("javascript", "1", "no function main(data)", marks=needs_node),
        ("wasm", "(modul", "expected"),
        ("wasm", "(module)", "_start"),
    ],
)
async def test_what_another_attempt_cannot_mend_is_permanent(
    language: Language, source: str, said: str
) -> None:
    failure = await failure_of(code(source, language=language))
    assert said in failure.reason
    if source != "(module)":
        assert failure.kind is FailureKind.PERMANENT_ERROR


@pytest.mark.parametrize("language", EACH)
async def test_code_is_killed_at_its_timeout(language: Language) -> None:
    node = code(SPINNING[language], language=language)
    failure = await failure_of(node, timeout=0.3, retry=Retry.none())
    assert failure.kind is FailureKind.STEP_TIMEOUT


FAMILY = """
import subprocess, sys, time
SLEEPER = '''
import os, sys, time
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()}")
time.sleep(1000)
'''
def main(data):
    child = subprocess.Popen([sys.executable, "-c", SLEEPER, data["path"]])
    while not open(data["path"]).read():
        time.sleep(0.01)
    if data["wait"]:
        child.wait()
    return "done"
"""


def family(path: Path, *, wait: bool) -> Any:
    path.touch()
    return code(FAMILY, args={"path": str(path), "wait": wait})


async def test_what_the_code_has_started_is_killed_with_it(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_node, family(path, wait=True))
        with trio.fail_after(30):
            while not path.read_text():
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    await gone(int(path.read_text()))


async def test_what_the_code_leaves_running_is_killed_when_it_is_done(tmp_path: Path) -> None:
    assert await run_node(family(tmp_path / "pid", wait=False)) == "done"
    await gone(int((tmp_path / "pid").read_text()))


ESCAPING = """
import subprocess, sys
def main(data):
    sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
    return subprocess.Popen(sleeper, start_new_session=True).pid
"""


async def test_what_has_left_the_group_of_the_code_holds_up_nobody() -> None:
    with trio.fail_after(30):
        pid = await run_node(code(ESCAPING))
    os.kill(pid, signal.SIGKILL)
    await gone(pid)


KEYRUN = """
import sys, trio
from tests.flows.nodes import run_node
from keyrun.flows.nodes.code import code

trio.run(run_node, code(sys.argv[2], language=sys.argv[1], args={"path": sys.argv[3]}))
"""
TELLING: dict[Language, str] = {
    "python": "import os\ndef main(data):\n open(data['path'], 'w').write(f'{os.getpid()}\\n')\n"
    " while True: pass",
    "javascript": "function main(data) {"
    " require('node:fs').writeFileSync(data.path, process.pid + '\\n'); for (;;) ; }",
}


@pytest.mark.parametrize("language", EACH[:2])
async def test_code_ends_when_keyrun_itself_is_killed(tmp_path: Path, language: Language) -> None:
    path = tmp_path / "pid"
    words = [sys.executable, "-c", KEYRUN, language, TELLING[language], str(path)]
    process = subprocess.Popen(words, env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        with trio.fail_after(30):
            while not (path.exists() and path.read_text().endswith("\n")):
                await trio.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    await gone(int(path.read_text()))
    assert [each.name for each in tmp_path.iterdir()] == ["pid"]


@pytest.mark.parametrize(
    ("language", "source"),
    [
        ("python", "def main(data): return 'x' * 1998"),
        pytest.param("javascript", "function main() { return 'x'.repeat(1998) }", marks=needs_node),
    ],
)
async def test_a_result_that_is_too_large_is_refused_with_its_size(
    language: Language, source: str
) -> None:
    failure = await failure_of(code(source, language=language, max_output=1000))
    assert failure.kind is FailureKind.PERMANENT_ERROR
    assert (
        "the result of the code has 2,000 bytes, and the limit of this node is 1,000"
        in failure.reason
    )


async def test_webassembly_that_writes_without_end_is_stopped() -> None:
    failure = await failure_of(code(FLOOD_WASM, language="wasm", max_output=1_000_000))
    assert failure.kind is FailureKind.PERMANENT_ERROR
    assert "more than 1,000,000 bytes" in failure.reason


async def test_much_that_is_printed_neither_blocks_nor_counts() -> None:
    node = code("def main(data):\n  for _ in range(200): print('x' * 10_000)\n  return 1")
    assert await run_node(node) == 1


async def test_the_code_does_not_see_the_environment_except_what_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("SHARED", "t")
    node = code("import os\ndef main(data): return sorted(os.environ)", env=["SHARED"])
    seen = await run_node(node)
    assert "SHARED" in seen
    assert "SECRET" not in seen


async def test_the_code_starts_in_an_empty_directory_that_is_removed() -> None:
    node = code("import os\ndef main(data): return [os.getcwd(), os.listdir()]")
    folder, inside = await run_node(node)
    assert inside == []
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        ("def main(:", {}, ValueError, "line 1: the code is not Python: invalid syntax"),
        ("\n\nx = = 1", {}, ValueError, "line 3"),
        ("x = " + "-" * 100_000 + "1", {}, ValueError, "nested too deep"),
        ("x = a" + ".a" * 100_000, {}, ValueError, "nested too deep"),
        ("x", {"language": "perl"}, ValueError, "language must be one of python, javascript, wasm"),
        (b"x", {}, TypeError, "the source of python code must be text"),
    ],
)
def test_code_that_cannot_be_is_refused_when_it_is_made(
    source: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        code(source, where="nodes.sum", **options)


@pytest.mark.parametrize("source", ["x = 1", "def man(data): ...", "print(main)"])
def test_python_without_main_is_refused_before_it_runs(source: str) -> None:
    with pytest.raises(ValueError, match="the code defines no function 'main'"):
        code(source, where="tidy")


@pytest.mark.parametrize("source", ["from os.path import *", "from os import getcwd as main"])
def test_main_may_come_from_elsewhere(source: str) -> None:
    code(source)


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(NodeFailed, match="JavaScript requires node"):
        code("1", language="javascript")
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    with pytest.raises(MissingExtra, match=r"pip install .\.\[wasm\]"):
        code("1", language="wasm")
