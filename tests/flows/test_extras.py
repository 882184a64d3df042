"""Without the extra the core works, and what needs it says what to install."""

import subprocess
import sys

import pytest

BARE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"jinja2", "httpx", "yaml", "cel", "wasmtime"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run_bare(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` where nothing of the extra is installed."""
    words = [sys.executable, "-W", "error", "-c", BARE + code]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def test_keyrun_is_imported_without_the_extra() -> None:
    done = run_bare("import keyrun, keyrun.flows, keyrun.testing, keyrun.cli.group")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "from keyrun.flows.nodes.http import http\nhttp('{{ input }}')",
        "from keyrun.flows.templates import renderable\nrenderable(['{{ x }}'], 't')",
    ],
)
def test_what_needs_the_extra_says_what_to_install(code: str) -> None:
    done = run_bare(code)
    assert done.returncode == 1
    assert 'pip install ".[flows]"' in done.stderr.splitlines()[-1]
