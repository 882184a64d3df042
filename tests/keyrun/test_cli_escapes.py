"""What a run contains never reaches the terminal as a control sequence."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Graph,
    NodeInput,
    PermanentError,
    RunFailed,
    current_step,
    step,
    workflow,
)
from keyrun.groups import Member
from keyrun.schedules import Every
from keyrun.storage import LmdbStore
from keyrun.testing import RecordingHook, open_test_runtime
from tests.keyrun.cli import invoke

EVIL = (
    "red \x1b[31m clear \x1b[2J title \x1b]0;owned\x07 link \x1b]8;;http://evil\x1b\\ "
    "c1 \x9b31m\x9d bell \x07 back \x08\r lines\n\u2028\u2029\x85 del \x7f "
    "bidi \u202e\u2066\u200f hidden \u200b\ufeff tab\t end"
)
LONG = "long" * 1000
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""The only control sequences that the command line writes itself, besides those of progress."""


@step(name="step \x1b[31m\u202e")
async def evil_step(text: str) -> str:
    current_step().report(50, EVIL)
    return EVIL


@step(name="bad \x1b[32m")
async def bad_step() -> None:
    raise PermanentError(EVIL + LONG)


@workflow(name="wf \x1b[33m")
async def evil(ctx: Context, text: str) -> str:
    ctx.report(10, EVIL)
    await ctx.step(evil_step, text)
    ctx.patched(EVIL)
    await ctx.wait_signal("signal \x1b[34m")
    await ctx.approval("gate \x1b[35m")
    return EVIL


@workflow(name="fails \x1b[36m")
async def fails(ctx: Context, text: str) -> None:
    await ctx.step(bad_step)


async def bad_node(given: NodeInput) -> None:
    raise PermanentError(EVIL)


drawn = Graph("graph \x1b[37m")
drawn.node("node \x1b[1m", bad_node)


async def _fill(path: Path) -> None:
    workflows = [evil, fails, drawn]
    async with open_test_runtime(
        LmdbStore(path), workflows=workflows, on_terminal=RecordingHook()
    ) as rt:
        options: Any = {"headers": {EVIL: EVIL}, "tags": [EVIL]}
        await rt.submit(evil, EVIL, key=EVIL, run_id="gate", **options)
        await rt.signal("gate", "signal \x1b[34m", {EVIL: [EVIL]})
        await rt.submit(evil, LONG, key=f"{EVIL}2", run_id="signal")
        failed = await rt.submit(fails, EVIL, key="k", run_id="failed", **options)
        with pytest.raises(RunFailed):
            await failed.result()
        await rt.submit(drawn, key="g", run_id="graph")
        await rt.schedule("s", evil, EVIL, key=EVIL, when=Every(50))
        await rt.submit_group("group", [Member(fails, EVIL, key=EVIL, member_id="m")])
        await trio.sleep(100)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which every text that an application or a caller gives has control sequences."""
    path = tmp_path_factory.mktemp("hostile") / "store"
    trio.run(_fill, path, clock=MockClock(autojump_threshold=0))
    invoke("pause-key", path, EVIL)
    invoke("cancel", path, "nobody")
    invoke("approve", path, "gate", EVIL, "--by", EVIL, "--comment", EVIL)
    invoke("approve", path, "gate", "gate \x1b[35m", "--by", EVIL, "--comment", EVIL)
    return path


READING = [
    ["runs", "{}"],
    ["runs", "{}", "--limit", "1", "--oldest-first"],
    ["status", "{}", "gate"],
    ["status", "{}", "signal"],
    ["status", "{}", "failed"],
    ["status", "{}", "graph"],
    ["why", "{}", "gate"],
    ["why", "{}", "--key", EVIL],
    ["history", "{}", "gate"],
    ["history", "{}", "failed"],
    ["progress", "{}", "gate"],
    ["progress", "{}", "failed", "--follow"],
    ["graph", "{}", "graph"],
    ["graph", "{}", "graph", "--mermaid"],
    ["graph", "{}", "gate"],
    ["keys", "{}", "--limit", "1"],
    ["keys", "{}", "--key", EVIL],
    ["dead-letters", "{}"],
    ["schedules", "{}"],
    ["stats", "{}"],
    ["approvals", "{}"],
    ["audit", "{}"],
    ["groups", "{}"],
    ["groups", "status", "{}", "group"],
    ["result", "{}", "failed"],
    ["cancel", "{}", "--tag", EVIL, "--preview"],
]
WRITING = [
    ["cancel", "{}", EVIL],
    ["pause-key", "{}", EVIL],
    ["release", "{}", EVIL],
    ["approve", "{}", "signal", EVIL],
    ["signal", "{}", "signal", EVIL, "--payload", json.dumps(EVIL)],
    ["signal", "{}", EVIL, EVIL],
    ["schedules", "pause", "{}", EVIL],
    ["groups", "cancel", "{}", EVIL],
    ["runs", EVIL],
    ["submit", "{}", EVIL, "--key", EVIL],
    ["cancel", "{}", "--state", "failed", "--workflow", EVIL, "--yes"],
    [EVIL],
]


def check(text: str) -> None:
    """Raise unless a terminal shows this text as it is."""
    for line in text.split("\n"):
        assert line.isprintable(), repr(line)


@pytest.mark.parametrize("columns", [None, 60, 100])
@pytest.mark.parametrize("words", [*READING, *WRITING], ids=lambda words: " ".join(words[:1]))
def test_no_control_sequence_of_a_run_is_printed(
    hostile: Path, words: list[str], columns: int | None
) -> None:
    result = invoke(*(str(hostile) if word == "{}" else word for word in words), columns=columns)
    shown = result.stdout + result.stderr
    assert shown, words
    if "--follow" in words or words[0] == "cancel":
        shown = re.sub(r"\x1b\[\d*[FJK]|\r", "", shown)
    check(shown)
    if columns is not None and words[0] not in ("status", "graph"):
        assert max(map(len, result.stdout.split("\n"))) <= columns


@pytest.mark.parametrize("words", READING, ids=lambda words: " ".join(words[:1]))
def test_json_escapes_what_a_terminal_would_obey(hostile: Path, words: list[str]) -> None:
    words = [each for each in words if each != "--mermaid"]
    result = invoke(*(str(hostile) if word == "{}" else word for word in words), "--json")
    for line in result.stdout.splitlines():
        assert line.isascii()
        assert line.isprintable()
        json.loads(line)


def test_only_colours_are_added_on_a_terminal(hostile: Path) -> None:
    for name in ("runs", "dead-letters", "keys"):
        shown = invoke(name, hostile, columns=100, env={"NO_COLOR": None, "TERM": "xterm"}).stdout
        assert COLOUR.search(shown)
        check(COLOUR.sub("", shown))


def test_a_place_to_continue_can_be_pasted_into_bash(hostile: Path) -> None:
    """The words of the shell are the bytes of the key."""
    told = invoke("keys", hostile, "--limit", "1").stderr
    word = told.partition("--after ")[2].strip()
    check(word)
    shown = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    key = shown.stdout.decode()
    assert key in ("g", "k", EVIL, f"{EVIL}2")
    assert invoke("keys", hostile, "--after", key, "--json").exit_code == 0
