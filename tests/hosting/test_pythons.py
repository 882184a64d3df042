"""`make test-pythons` finds interpreters, and runs each before it uses it."""

import os
import sys
from pathlib import Path

import pytest

from tests.hosting.pythons import find, main, supported


def script(path: Path, line: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def test_a_shim_that_fails_is_passed_over_for_an_interpreter_of_pyenv(tmp_path: Path) -> None:
    shim = script(tmp_path / "shims" / "python9.9", "exit 1")
    script(tmp_path / "versions" / "9.9.1" / "bin" / "python", "echo 9.8")
    works = script(tmp_path / "versions" / "9.9.0" / "bin" / "python", "echo 9.9")
    assert find("9.9", f"{shim.parent}{os.pathsep}/nowhere", tmp_path) == works
    assert find("9.7", str(shim.parent), tmp_path) is None


def test_an_interpreter_on_the_path_is_found(tmp_path: Path) -> None:
    works = script(tmp_path / "bin" / "python9.9", "echo 9.9")
    assert find("9.9", str(works.parent), tmp_path) == works
    running = "{}.{}".format(*sys.version_info[:2])
    assert find(running, "", tmp_path) == Path(sys.executable)


def test_a_version_that_is_not_installed_is_an_error_in_ci(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = "{}.{}".format(*sys.version_info[:2])
    others = [version for version in supported() if version != running]
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PYENV_ROOT", "/nowhere")
    assert main([]) == f"no interpreter for Python {', '.join(others)}; " + (
        "install it, for example with pyenv"
    )
    printed = capsys.readouterr().out
    assert f"Python {running}: {sys.executable}" in printed
    assert f"Python {others[0]}: not installed" in printed
