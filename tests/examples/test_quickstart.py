"""The finished program of the quickstart runs, resumes, and passes its own test."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / "examples" / "quickstart"
PRINTED = """\
order-1 shipped to 1 Main Street
alice has 5 points
order-2 shipped to 1 Main Street
alice has 505 points
"""


def run(*command: str | Path, cwd: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=cwd,
        env=kept,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_shop_prints_the_same_when_it_is_started_again(tmp_path: Path) -> None:
    assert run(FOLDER / "shop.py", cwd=tmp_path) == PRINTED
    assert run(FOLDER / "shop.py", cwd=tmp_path) == PRINTED


def test_the_tests_of_the_shop_pass() -> None:
    assert "3 passed" in run(
        "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio", "-q", cwd=FOLDER
    )
