"""The command itself: how it starts, what it loads, and how it behaves among other commands."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from keyrun import __version__
from keyrun.cli.group import COMMANDS, command
from tests.keyrun.cli import invoke, shell
from tests.storage.processes import run_python


def test_the_library_does_not_load_the_command_line() -> None:
    done = run_python("import sys, keyrun; print({'click', 'rich', 'keyrun.cli'} & {*sys.modules})")
    assert done.stdout == "set()\n", done.stderr


def test_a_command_loads_only_itself() -> None:
    done = run_python(
        """
        import sys
        from keyrun.cli.group import command
        try:
            command(["runs", "nowhere"])
        except SystemExit:
            pass
        print("keyrun.cli.run" in sys.modules, "rich" in sys.modules)
        """
    )
    assert done.stdout == "False False\n", done.stderr


def test_the_list_of_commands_loads_none_of_them() -> None:
    done = run_python(
        """
        import sys
        from keyrun.cli.group import command
        try:
            command(["--help"])
        except SystemExit:
            pass
        print({"keyrun.cli.runs", "keyrun.demo", "keyrun.runtime", "trio"} & {*sys.modules})
        """
    )
    assert done.stdout.endswith("\nset()\n"), done.stderr


def test_the_command_and_the_module_are_the_same() -> None:
    assert shell("--version").stdout == f"keyrun {__version__}\n"
    module = subprocess.run(
        [sys.executable, "-m", "keyrun", "--version"], capture_output=True, text=True
    )
    assert module.stdout == f"keyrun {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_teaches_by_example(name: str) -> None:
    result = invoke(name, "--help", columns=60)
    assert result.exit_code == 0
    assert f"\n    keyrun {name} " in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 60


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_not_understood_says_where_help_is(name: str) -> None:
    result = invoke(name, "--no-such-option")
    assert result.exit_code == 2
    assert f"Try 'keyrun {name} --help' for help." in result.stderr.replace("\n", " ")


def test_the_help_lists_the_commands_and_the_exit_codes() -> None:
    result = invoke("--help", columns=60)
    for name in COMMANDS:
        assert f"\n  {name}  " in result.stdout
    assert "130  interrupted" in result.stdout
    assert "...\n  " not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 60


def options(group: click.Group, name: str = "keyrun") -> Iterator[tuple[str, click.Option]]:
    """Return the options of all commands, with the name of the command."""
    context = click.Context(group)
    for each in group.list_commands(context):
        found = group.get_command(context, each)
        assert found is not None
        if isinstance(found, click.Group):
            yield from options(found, f"{name} {each}")
        for option in found.params:
            if isinstance(option, click.Option):
                yield f"{name} {each} {option.opts[-1]}", option


OPTIONS = dict(options(command))


@pytest.mark.parametrize("name", OPTIONS)
def test_the_help_of_an_option_makes_sense_without_the_options_beside_it(name: str) -> None:
    text = (OPTIONS[name].help or "").partition("  [default:")[0]
    assert text[:1].isupper(), text
    assert text.endswith("."), text
    assert len(text.split()) >= 3, text
    for pointing in ("The same", "so many", "Only those", "this one", " it "):
        assert pointing not in text


def test_what_is_not_a_command_is_refused() -> None:
    result = invoke("rusn")
    assert result.exit_code == 2
    assert "no such command 'rusn'; did you mean run or runs?" in result.stderr
    assert "no such command 'xyz'; see keyrun --help" in invoke("xyz").stderr
    assert invoke("runs").exit_code == 2


def test_a_pipe_that_is_closed_early_is_no_complaint(filled: Path) -> None:
    keyrun = Path(sys.executable).parent / "keyrun"
    for words in ("--json", "--oldest-first"):
        read, write = os.pipe()
        process = subprocess.Popen(
            [keyrun, "runs", filled, words], stdout=write, stderr=subprocess.PIPE, text=True
        )
        os.close(write)
        os.close(read)
        _, told = process.communicate(timeout=60)
        assert told == ""
        assert process.returncode == 141


@pytest.mark.parametrize("words", [[], ["flow"]])
def test_without_a_command_there_is_the_help(words: list[str]) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert result.stderr.count("Usage: ") == 1
    assert "Error" not in result.stderr


@pytest.mark.parametrize("columns", [60, 100])
def test_errors_are_wrapped_at_the_width_of_the_terminal(filled: Path, columns: int) -> None:
    calls: list[list[object]] = [
        ["runs", "nowhere"],
        ["runs", filled, "--since", "yesterday"],
        ["runs", filled, "--state", "crashed"],
        ["status", filled, "nobody"],
        ["graph", filled, "r1"],
        ["run", "shop"],
        ["run", "shop:checkout"],
        ["runs"],
        ["rusn"],
    ]
    for words in calls:
        told = invoke(*words, columns=columns).stderr
        assert "Error: " in told
        for line in told.splitlines():
            assert len(line) <= columns or len(line.split()) == 1, line


def on_a_terminal(*words: object, **environ: str) -> str:
    """What `keyrun` shows on a terminal of its own."""
    ours, theirs = pty.openpty()
    environ = {"TERM": "xterm-256color", "COLUMNS": "60", **environ}
    clean = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with subprocess.Popen(
        [Path(sys.executable).parent / "keyrun", *map(str, words)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**clean, **environ},
    ):
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # how Linux says that the other end is closed
            pass
    os.close(ours)
    return shown.decode()


def test_a_terminal_gets_colours_unless_it_asks_for_none(filled: Path) -> None:
    assert "\x1b[31mfailed" in on_a_terminal("runs", filled)
    assert "\x1b" not in on_a_terminal("runs", filled, NO_COLOR="1")


def test_a_closed_output_is_no_complaint(filled: Path) -> None:
    keyrun = Path(sys.executable).parent / "keyrun"
    for words in ("runs", "keys", "verify"):
        done = subprocess.run(
            ["sh", "-c", f'"{keyrun}" {words} "{filled}" >&-'], stderr=subprocess.PIPE, text=True
        )
        assert "Traceback" not in done.stderr
        assert done.returncode == 0
