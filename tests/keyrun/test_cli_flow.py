"""`keyrun flow` and `keyrun schema`: flows from the shell."""

import json
from pathlib import Path

import pytest

from keyrun.flows.document import schema
from tests.keyrun.cli import invoke, lines, shell

SUM = """
name: sum
nodes:
  sum:
    kind: code
    args: {numbers: "{{ input }}"}
    source: |
      def main(data):
          print("adding")
          return sum(data["numbers"])
"""
CALLING = """
name: calling
nodes:
  greet: {kind: call, function: greet, args: {name: "{{ input.name }}"}}
"""
SHOP = """
from keyrun import step, workflow

@step
async def greet(name):
    return f"hello {name}"

def helper():
    pass
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sum.yaml").write_text(SUM)
    (tmp_path / "calling.yaml").write_text(CALLING)
    (tmp_path / "greetings.py").write_text(SHOP)
    (tmp_path / "bad.yaml").write_text("name: 7\nnodes:\n  a: {kind: http}\n")
    return tmp_path


def test_a_flow_is_run_and_its_result_printed(here: Path) -> None:
    done = shell("flow", "run", "sum.yaml", "--key", "k", "--input", "[1, 2]", cwd=here)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert "step completed sum" in done.stderr


def test_the_same_run_again_is_the_same_run(here: Path) -> None:
    words = ["flow", "run", "sum.yaml", "--key", "k", "--store", "state", "--run-id", "r"]
    for _ in range(2):
        done = shell(*words, "--input", "[1, 2]", cwd=here)
        assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert ", key k, submitted earlier" in done.stderr


def test_a_flow_that_fails_says_so_and_exits_with_1(here: Path) -> None:
    words = ["flow", "run", "sum.yaml", "--key", "k", "--input", '["a", 1]', "-q"]
    (here / "sum.yaml").write_text(SUM + "    retry: none\n")
    done = shell(*words, cwd=here)
    assert (done.returncode, done.stdout) == (1, "")
    assert "TypeError" in done.stderr


def test_functions_are_the_steps_of_the_modules_that_are_named(here: Path) -> None:
    words = ["flow", "run", "calling.yaml", "--key", "k", "--input", '{"name": "Ann"}']
    done = shell(*words, "--with", "greetings", cwd=here)
    assert (done.returncode, done.stdout) == (0, '"hello Ann"\n'), done.stderr
    done = shell(*words, cwd=here)
    assert done.returncode == 2
    assert "calling.yaml:4: nodes.greet.function: there is no function 'greet'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_flow_that_cannot_be_is_refused_with_all_its_problems(here: Path) -> None:
    result = invoke("flow", "run", "bad.yaml", "--key", "k")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "bad.yaml:1: name: must be text, got 7" in result.stderr
    assert "bad.yaml:3: nodes.a: requires the field 'url'" in result.stderr


def test_check_says_that_all_is_well(here: Path) -> None:
    result = invoke("flow", "check", "sum.yaml", "calling.yaml", "--with", "greetings")
    assert result.exit_code == 0, result.output
    assert "sum.yaml: flow 'sum' is valid: 1 node, 0 edges" in result.stderr


def test_check_tells_the_problems_of_all_files(here: Path) -> None:
    result = invoke("flow", "check", "bad.yaml", "sum.yaml", "missing.yaml")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "bad.yaml:1: name: must be text, got 7",
        "bad.yaml:3: nodes.a: requires the field 'url': The address, with http:// or https://.",
        "missing.yaml: cannot be read: No such file or directory",
    ]


def test_check_has_a_form_for_programs(here: Path) -> None:
    result = invoke("flow", "check", "bad.yaml", "sum.yaml", "--json")
    assert result.exit_code == 1
    first, second = map(json.loads, result.stdout.splitlines())
    assert first == {
        "file": "bad.yaml",
        "line": 1,
        "message": "name: must be text, got 7",
        "severity": "error",
    }
    assert second["line"] == 3


GATES = """
name: gates
nodes:
  gate: {kind: approval, timeout: 60}
  patient: {kind: approval}
  careful: {kind: approval, timeout: 60}
  either: {kind: branch, when: input.a}
  both: {kind: branch, when: input.a}
  last: {kind: approval, timeout: 60}
  end: {kind: branch, when: input.a}
edges:
  - {from: gate, to: patient, port: approved}
  - {from: patient, to: careful}
  - {from: patient, to: either, port: rejected}
  - {from: careful, to: either, on: all}
  - {from: either, to: both, port: then}
  - {from: both, to: last}
  - {from: both, to: end, on: fail}
"""


def test_check_warns_of_every_port_that_no_edge_takes(here: Path) -> None:
    (here / "gates.yaml").write_text(GATES)
    result = invoke("flow", "check", "gates.yaml", "--json")
    assert result.exit_code == 0
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert {(each["file"], each["severity"]) for each in found} == {("gates.yaml", "warning")}
    ports = [(each["line"], each["message"].split(", so ")[0]) for each in found]
    assert ports == [
        (4, "nodes.gate: no edge takes the port 'rejected'"),
        (4, "nodes.gate: no edge takes the port 'timeout'"),
        (7, "nodes.either: no edge takes the port 'else'"),
        (9, "nodes.last: no edge takes the port 'rejected'"),
        (9, "nodes.last: no edge takes the port 'timeout'"),
        (10, "nodes.end: no edge takes the port 'then'"),
        (10, "nodes.end: no edge takes the port 'else'"),
    ]
    result = invoke("flow", "check", "gates.yaml")
    assert result.exit_code == 0
    assert result.stdout.startswith("gates.yaml:4: warning: nodes.gate: no edge takes the port")
    assert "is valid: 7 nodes, 7 edges, 7 warnings" in result.stderr


def test_nothing_in_a_flow_can_move_the_cursor(here: Path) -> None:
    (here / "red.yaml").write_text('name: a\nnodes: {"\\e[31mred": 1}\n')
    result = invoke("flow", "check", "red.yaml")
    assert "\x1b" not in result.stdout
    assert "\\x1b[31mred" in result.stdout


REVIEW = """
name: review
nodes:
  review: {kind: approval}
  sure: {kind: approval}
  done: {kind: branch, when: 'output.by != ""'}
edges:
  - {from: review, to: sure, port: approved}
  - {from: sure, to: done, port: approved}
"""


def test_gates_can_be_approved_on_the_command_line(here: Path) -> None:
    (here / "review.yaml").write_text(REVIEW)
    words = ["flow", "run", "review.yaml", "--key", "k", "--approve", "sure", "--approve", "review"]
    done = shell(*words, cwd=here)
    assert done.returncode == 0, done.stderr
    told = done.stderr
    assert told.index("Approved gate review.") < told.index("Approved gate sure.")


SIGNALS = """
name: signals
nodes:
  first: {kind: signal, name: go}
  second: {kind: signal, name: go}
  done: {kind: branch, when: 'outputs.first.payload.n == 1 && output.payload == null'}
edges:
  - {from: first, to: second}
  - {from: second, to: done}
"""


def test_signals_can_be_sent_on_the_command_line_and_are_not_sent_again(here: Path) -> None:
    (here / "signals.yaml").write_text(SIGNALS)
    words = ["flow", "run", "signals.yaml", "--key", "k", "--store", "st", "--run-id", "r"]
    words += ["--signal", 'go={"n": 1}', "--signal", "go"]
    for _ in range(2):
        done = shell(*words, cwd=here)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["output"]["payload"] == {"n": 1}


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        ("go=x", "the payload of --signal go is not JSON: Expecting value at line 1, column 1"),
        ("=1", "--signal requires NAME or NAME=JSON, got '=1': name must be a non-empty string"),
    ],
)
def test_a_bad_signal_is_refused_before_the_run_starts(
    here: Path, signal: str, expected: str
) -> None:
    (here / "signals.yaml").write_text(SIGNALS)
    result = invoke("flow", "run", "signals.yaml", "--key", "k", "--signal", signal)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert "Run " not in result.stderr


def test_another_flow_may_be_named_too(here: Path) -> None:
    result = invoke("flow", "check", "calling.yaml", "--with", "greetings", "--with", "sum.yaml")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", ["run", "check"])
def test_the_help_teaches_by_example(name: str) -> None:
    result = invoke("flow", name, "--help", columns=60)
    assert result.exit_code == 0
    assert f"\n    keyrun flow {name} " in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 60


def test_the_schema_is_printed() -> None:
    assert json.loads("".join(lines("schema"))) == schema()


def test_without_the_extra_a_flow_says_what_to_install(here: Path) -> None:
    from tests.flows.test_extras import run_bare

    done = run_bare(
        "from keyrun.cli.group import command\n"
        f"command(['flow', 'check', {str(here / 'sum.yaml')!r}])"
    )
    assert done.returncode == 2
    assert done.stderr.strip().endswith('pip install ".[flows]"')
    assert "Traceback" not in done.stderr
