"""What mypy and pyright say about programs on Trio, asyncio and threads.

The programs of the three faces differ in the module of the runtime and in `await`, so there is one
of each kind in `typed_programs`. basedpyright is pyright in a wheel that brings its own Node.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "typed_programs"
MARK = "# wrong"

Lines = set[tuple[str, int]]


def for_face(source: str, face: str) -> str:
    """The same program for another face, line by line."""
    if face == "trio":
        return source
    source = re.sub(r"\bkeyrun\.(open_runtime|connect|Runtime)\b", rf"keyrun.{face}.\1", source)
    source = source.replace("import keyrun\n", f"import keyrun.{face}\n")
    if face == "asyncio":
        return source
    definitions, start, main = source.partition("async def main")
    main = re.sub(r"\b(?:async|await) ", "", start + main)
    # The proxies of threads are untyped.
    return definitions + re.sub(r"(?m)^.*rt\.entity\(.*$", "        # untyped", main)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with all programs for all faces."""
    for kind in ("accepted", "rejected"):
        source = (PROGRAMS / f"{kind}.py").read_text()
        for face in ("trio", "asyncio", "sync"):
            (tmp_path / f"{kind}_{face}.py").write_text(for_face(source, face))
    return tmp_path


def marked(folder: Path) -> Lines:
    return {
        (path.name, number)
        for path in folder.glob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.endswith(MARK)
    }


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_mypy_accepts_what_is_right_and_rejects_each_line_that_is_wrong(programs: Path) -> None:
    # The configuration and the cache of the project: mypy has read most of it for `make types`.
    files = map(str, programs.glob("*.py"))
    said = run("mypy", "--config-file", "pyproject.toml", *files, cwd=ROOT)
    errors = re.findall(r"(?m)^(.+):(\d+): error:", said)
    assert {(Path(path).name, int(line)) for path, line in errors} == marked(programs), said


def test_pyright_accepts_what_is_right_and_rejects_each_line_that_is_wrong(programs: Path) -> None:
    configuration = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)]}
    (programs / "pyrightconfig.json").write_text(json.dumps(configuration))
    said = run("basedpyright", "--outputjson", "--pythonpath", sys.executable, cwd=programs)
    errors = [
        each for each in json.loads(said)["generalDiagnostics"] if each["severity"] == "error"
    ]
    lines = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors}
    assert lines == marked(programs), said
