"""The rules of the house: which folder may import what."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import keyrun

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "actors": {"trio", "attrs", "keyrun._errors", "keyrun._waking", "keyrun.actors"},
    # What a task is woken with is an `outcome`: the library that Trio uses for it.
    "storage": {"lmdb", "msgpack", "attrs", "cattrs", "trio", "outcome", "keyrun._errors"}
    | {"keyrun._histogram", "keyrun._waking", "keyrun.storage"},
}
IN_FOLDER = {"conformance": {"hypothesis", "pytest"}, "postgres": {"psycopg"}}
"""What only the modules of a folder may import."""


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports inside the house are absolute"
            yield node.module or ""


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_a_folder_imports_only_what_the_plan_of_the_house_allows(folder: str) -> None:
    for path in (ROOT / folder).glob("**/*.py"):
        allowed = MAY_IMPORT[folder] | IN_FOLDER.get(path.parent.name, set())
        for name in imports_of(path):
            if name.partition(".")[0] in sys.stdlib_module_names:
                continue
            assert any(name == a or name.startswith(a + ".") for a in allowed), f"{path}: {name}"


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has after `code`."""
    code = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


RARE = {
    *(
        "asyncio",
        "cattrs",
        "click",
        "cronsim",
        "dataclasses",
        "pydantic",
        "rich",
        "trio_asyncio",
        "zoneinfo",
    ),
    *(f"keyrun.runtime.{part}" for part in ("graphs", "groups.service", "machines")),
    *(f"keyrun.runtime.{part}" for part in ("schedules.service", "schedules.timetable")),
    *(
        f"keyrun.runtime.policies.{part}"
        for part in ("checkpoint", "circuit_breaker", "rate_limit")
    ),
    *(
        f"keyrun.runtime.inspect.{part}"
        for part in ("history", "keys", "progress", "run_inspector")
    ),
    "keyrun.runtime.host.step_gates",
}
PLAIN_RUN = """
import trio
from keyrun import Context, open_runtime, step, workflow
from keyrun.storage import MemoryStore

@step
async def shout(word: str) -> str:
    return word.upper()

@workflow
async def greet(ctx: Context, names: list[str]) -> list[str]:
    return [await ctx.step(shout, name) for name in names]

async def main() -> None:
    async with open_runtime(MemoryStore(), workflows=[greet]) as runtime:
        run = await runtime.submit(greet, ["ann"], key="k")
        assert await run.result() == ["ANN"]

trio.run(main)
"""


@pytest.mark.parametrize(
    "code", ["from keyrun import open_runtime", PLAIN_RUN], ids=["import", "run"]
)
def test_what_few_programs_need_is_not_imported_before_they_do(code: str) -> None:
    assert RARE & loaded_by(code) == set()


def test_the_front_door_waits_for_nobody() -> None:
    assert {"attrs", "keyrun.runtime", "lmdb", "trio"} & loaded_by("import keyrun") == set()
    loaded = loaded_by("import keyrun; keyrun.actors.ActorSystem")
    assert {"keyrun.runtime", "lmdb"} & loaded == set()
    assert "lmdb" in loaded_by("import keyrun; keyrun.storage.LmdbStore, keyrun.StoreFull")
    assert "psycopg" not in loaded_by("import keyrun; keyrun.storage.store_at('state')")


def test_what_is_imported_late_is_there_like_everything_else() -> None:
    loaded = loaded_by("import keyrun; assert {'Graph', 'events', 'step'} <= set(dir(keyrun))")
    assert "keyrun.runtime.graphs" not in loaded
    loaded = loaded_by("from keyrun import Graph; import keyrun; assert keyrun.Graph is Graph")
    assert "keyrun.runtime.graphs" in loaded
    every = "from keyrun import *; import keyrun; assert Graph is keyrun.Graph; step"
    assert "keyrun.runtime.graphs" in loaded_by(every)
    loaded = loaded_by("import keyrun; keyrun.events.EventKind")
    assert "keyrun.runtime.open" not in loaded


FIRST = """
import importlib, os, sys
import attrs, lmdb, msgpack, trio
for module in sys.argv[1:]:
    if os.fork() == 0:
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(module, error, flush=True)
        os._exit(0)
    os.wait()
"""


def test_whatever_is_asked_for_first_can_be_imported_first() -> None:
    modules = sorted({*keyrun._DEFINED_IN.values(), *(f"keyrun.{part}" for part in keyrun._PARTS)})
    done = subprocess.run(
        [sys.executable, "-c", FIRST, *modules], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


def test_a_name_that_is_not_there_is_missed_by_its_name() -> None:
    with pytest.raises(AttributeError, match=r"module 'keyrun' has no .*'grpah'"):
        keyrun.grpah  # type: ignore[attr-defined]  # noqa: B018
