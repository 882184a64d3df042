"""The program and the commands of the page on several workers work as pasted."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.examples.test_shop_readmes import END_ALL_JOBS, free_port

PAGE = Path(__file__).parent.parent.parent / "docs/several-workers.md"


def block(language: str) -> str:
    """Return the first block of code in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_another_worker_answers_when_the_owner_was_killed(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "main.py").write_text(block("python"))
    # A worker that was killed may have taken the second connection.
    options = "max-time = 120\nnoproxy = *\nretry = 5\nretry-all-errors\n"
    (tmp_path / ".curlrc").write_text(options)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    commands = block("sh").replace(":8000", f":{port}")
    with subprocess.Popen(
        ["bash", "-c", f"set -m{END_ALL_JOBS}{commands}"],
        cwd=tmp_path,
        env={**os.environ, "UVICORN_PORT": str(port), "PATH": path, "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=180)
        finally:
            process.terminate()
    said = re.findall(r'"Hello (\w+) from process (\d+)"', output)
    assert [name for name, _ in said] == ["ann", "bob"], output
    assert said[0][1] != said[1][1]
