"""Run the tests of the hosts on every version of Python that Keyrun supports.

    make test-pythons

Finds the installed interpreters, and makes a virtual environment for each in `.venv-3.x`. It is
made again when `pyproject.toml` changes. With `CI=true` a version that is not installed is an
error; otherwise it is left out.
"""

import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PROJECT = ROOT / "pyproject.toml"
TESTS = (
    "tests/hosting",
    "--ignore=tests/hosting/test_generated_faces.py",  # compares files, with ruff
    "--ignore=tests/hosting/test_workers.py",  # real servers, which need the extra examples
)
ASK = "import ensurepip, sys, venv; print(*sys.version_info[:2], sep='.')"
PATIENCE = 60
"""Seconds for an interpreter to say its version."""


def supported() -> list[str]:
    """Return the versions that `pyproject.toml` names, the oldest first."""
    classifiers = tomllib.loads(PROJECT.read_text())["project"]["classifiers"]
    return re.findall(r"Programming Language :: Python :: (3\.\d+)$", "\n".join(classifiers), re.M)


def candidates(version: str, search_path: str, pyenv: Path) -> Iterator[Path]:
    """Return the files that may be an interpreter of a version, the most likely first."""
    yield Path(sys.executable)
    for directory in search_path.split(os.pathsep):
        yield Path(directory) / f"python{version}"
    yield from sorted(pyenv.glob(f"versions/{version}*/bin/python"), reverse=True)


def version_of(python: Path) -> str | None:
    """Run an interpreter, and return its version. A file that is not there, or a shim of pyenv
    without a version behind it, has none."""
    try:
        done = subprocess.run(
            [python, "-c", ASK], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def find(version: str, search_path: str, pyenv: Path) -> Path | None:
    """Return an interpreter of a version that works. `pyenv` is the folder of pyenv."""
    found = candidates(version, search_path, pyenv)
    return next((python for python in found if version_of(python) == version), None)


def environment(python: Path, version: str) -> Path:
    """Return the interpreter of a virtual environment with what the tests need."""
    directory = ROOT / f".venv-{version}"
    inside = directory / "bin" / "python"
    stamp = directory / "hosts.stamp"
    if not stamp.exists() or stamp.read_text() != PROJECT.read_text():
        subprocess.run([python, "-m", "venv", "--clear", "--without-pip", directory], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(inside), "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", "--editable", ".[hosts]"], cwd=ROOT, check=True)
        stamp.write_text(PROJECT.read_text())
    return inside


def run_tests(python: Path, arguments: Sequence[str]) -> bool:
    """Run the tests with an interpreter, and return whether they passed."""
    command = [
        str(python),
        "-m",
        "pytest",
        "--quiet",
        "--numprocesses",
        "2",
        "-p",
        "no:cacheprovider",
    ]
    return subprocess.run([*command, *TESTS, *arguments], cwd=ROOT).returncode == 0


def main(arguments: Sequence[str]) -> str | None:
    """Run the tests with every interpreter. Return what went wrong, or None."""
    versions = supported()
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = {each: find(each, os.environ.get("PATH", ""), pyenv) for each in versions}
    for version, python in found.items():
        print(f"Python {version}: {python or 'not installed'}", flush=True)
    missing = [version for version, python in found.items() if python is None]
    if missing and (os.environ.get("CI") == "true" or len(missing) == len(versions)):
        return f"no interpreter for Python {', '.join(missing)}; install it, for example with pyenv"
    failed = []
    for version, python in found.items():
        if python is not None:
            began = time.monotonic()
            inside = environment(python, version)
            ready = time.monotonic()
            if not run_tests(inside, arguments):
                failed.append(version)
            print(
                f"Python {version}: environment {ready - began:.0f} s, "
                f"tests {time.monotonic() - ready:.0f} s",
                flush=True,
            )
    return f"the tests failed on Python {', '.join(failed)}" if failed else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
