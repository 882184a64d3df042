"""The fixtures of Keyrun work in projects with pytest-asyncio, and with pytest alone."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import time
from keyrun import Context, step, workflow

@step(timeout=1)
def greet(name: str) -> str:
    time.sleep(0.002)
    return f"hello {name}"

@workflow
async def trial(ctx: Context, name: str) -> str:
    await ctx.sleep(14 * 86_400)
    return await ctx.step(greet, name)
"""
PLAIN = """
from conftest import trial

def test_a_trial(keyrun_sync):
    with keyrun_sync.open_test_runtime(workflows=[trial]) as rt:
        assert rt.submit(trial, "ann", key="ann").result() == "hello ann"
"""
ASYNCIO = """
import pytest
from conftest import trial

@pytest.mark.asyncio
async def test_a_trial(keyrun_asyncio):
    async with keyrun_asyncio.open_test_runtime(workflows=[trial]) as rt:
        assert await (await rt.submit(trial, "ann", key="ann")).result() == "hello ann"
"""
WITHOUT_KEYRUN = """
import sys

def test_nothing():
    assert "keyrun.pytest_plugin" in sys.modules
    assert not [name for name in sys.modules if name.startswith("keyrun.runtime")]
"""


def run_pytest(folder: Path, *options: str) -> str:
    (folder / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\naddopts = -p no:cacheprovider -p no:xdist\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("program", "options"),
    [
        (PLAIN, ("-p", "no:asyncio", "-p", "no:trio", "-p", "no:anyio")),
        (ASYNCIO, ("-p", "no:trio", "-o", "asyncio_default_fixture_loop_scope=function")),
    ],
    ids=["plain", "asyncio"],
)
def test_a_test_with_a_fixture_has_virtual_time(
    program: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_trial.py").write_text(program)
    assert "1 passed" in run_pytest(tmp_path, *options)


def test_a_project_that_does_not_use_keyrun_does_not_import_its_runtime(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(WITHOUT_KEYRUN)
    assert "1 passed" in run_pytest(tmp_path, "-p", "no:asyncio")
