"""Whatever is typed after `keyrun`: an answer, or one line that says what is wrong.

Every command is called with arguments made up at random from what it says that it takes, and from
what nobody should give it. The store that they all look at must be as it was.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType

import click
import pytest
from click.testing import CliRunner

from keyrun.cli.group import command
from keyrun.storage import verify
from tests.faults.soaking import amount, shown
from tests.keyrun.cli import LONG_KEY, make_store

CALLS = amount(250, 20_000)
PATIENCE = 30
"""Seconds for one call."""
CODES = {0, 1, 2, 3, 4, 5, 141}
LONG_LIVED = {"demo", "open", "stress"}
"""What takes its time when it is called rightly: those are only called wrongly."""
ENDLESS = {"watch", "follow"}

# No process can be given a NUL, nor a surrogate other than those that stand for bytes.
STRANGE = (
    *("", " ", "-", "--", "-1", "0", "1e999", "nan", "99999999999999999999", "0x10", "١٢"),
    *("a\nb", "\x1b[2J", "\udc80", "\udcff", "é" * 200, "x" * 100_000, "../..", "/dev/null", "/"),
    *("{}", "[]", "null", '{"a":', "[" * 100_000, '{"amount": 1, "amount": 2}', '"\\ud800"'),
    *("%s%n", "{0}", "{{ 7 * 7 }}", "$HOME", "`id`", "default", "alice", "r1", "r" * 200, LONG_KEY),
    *("2h", "-5m", "9999999d", "2026-13-45T99:99", "0001-01-01", "9999-12-31T23:59:59Z", "@", "@/"),
    *("os:system", "tests.keyrun.cli:checkout", "tests.keyrun.cli:", ":x", "no.such:thing", "..:x"),
    *("name=value", "keyrun.reserved=x", "=", "failed", "paused", "cron"),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("hostile") / "store")


@contextmanager
def patience(words: list[str]) -> Iterator[None]:
    """Raise if it takes too long."""

    def over(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"keyrun {words!r} does not come back")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def commands(group: click.Command, name: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names of all commands, those of groups included."""
    if not isinstance(group, click.Group):
        yield name
        return
    context = click.Context(group)
    for each in group.list_commands(context):
        found = group.get_command(context, each)
        assert found is not None
        yield from commands(found, (*name, each))


def found(name: tuple[str, ...]) -> click.Command:
    inner: click.Command = command
    for each in name:
        assert isinstance(inner, click.Group)
        taken = inner.get_command(click.Context(inner), each)
        assert taken is not None
        inner = taken
    return inner


NAMES = [*commands(command)]


def made_up(random: Random, store: Path) -> list[str]:
    """One command with arguments."""
    name = random.choice(NAMES)
    words = list(name)
    for parameter in found(name).params:
        value = random.choice(STRANGE)
        if random.random() < 0.4 and isinstance(parameter.type, click.Choice):
            value = str(random.choice(parameter.type.choices))
        if isinstance(parameter, click.Argument):
            wanted = parameter.name == "store" and random.random() < 0.8
            if random.random() < 0.95:
                words.append(str(store) if wanted else value)
        elif isinstance(parameter, click.Option) and parameter.name not in ENDLESS:
            if parameter.name == "help" or random.random() < 0.75:
                continue
            words.append(random.choice(parameter.opts))
            if not parameter.is_flag:
                words.append(value)
    if name[0] in LONG_LIVED:
        words += ["--no-such-option"]
    if random.random() < 0.05:
        words.insert(random.randrange(len(words) + 1), random.choice(STRANGE))
    return words


def complaint(words: list[str]) -> str | None:
    """What is wrong with how a call ended."""
    with patience(words):
        result = CliRunner().invoke(command, words, input="{}", prog_name="keyrun")
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        return f"raised {error!r}"
    if result.exit_code not in CODES:
        return f"ended with {result.exit_code}"
    # The traceback of a step or a workflow that fails is for the user.
    if "Traceback" in result.stderr and not (words[0] == "run" and result.exit_code == 1):
        return "printed a traceback"
    if result.exit_code in (2, 4) and not result.output.strip():
        return f"ended with {result.exit_code} and said nothing"
    return None


def test_every_command_answers_or_says_what_is_wrong(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    random = Random(7)
    before = verify(store)
    wrong = {}
    for _ in shown(range(CALLS), "calls", CALLS):
        words = made_up(random, store)
        said = complaint(words)
        if said is not None:
            wrong[tuple(words[:2]), said[:60]] = f"keyrun {words!r} {said}"[:2000]
    assert not wrong, "\n".join(wrong.values())
    after = verify(store)
    assert after.ok
    assert after.records >= before.records


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: ascii(value[:20]))
def test_no_command_is_upset_by_what_it_is_given_as_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs", "verify", "keys", "compact"):
        assert complaint([name, "--", value]) is None
    assert complaint(["history", "--", value, value]) is None


@pytest.mark.parametrize("word", [b"\xff\xed\xa0\x80", b"a\nb\x1b[2J"])
def test_bytes_that_are_no_text_are_answered_in_a_process_of_its_own(
    store: Path, word: bytes
) -> None:
    keyrun = os.fsencode(Path(sys.executable).parent / "keyrun")
    for words in ([b"status", os.fsencode(store), word], [b"runs", word]):
        done = subprocess.run([keyrun, *words], capture_output=True, check=False, timeout=PATIENCE)
        assert done.returncode in CODES - {0}
        assert done.stderr.strip()
        assert b"Traceback" not in done.stderr
