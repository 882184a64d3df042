"""Each example runs by itself, as it stands, and prints what it is there to show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "examples"
PRINTED = {
    "conversation": [
        "system: You plan trips. Use the tools for facts.",
        "user: Book a sunny weekend in Rome.",
        "assistant: ['weather']",
        'tool: {"forecast":"sunny in Rome"}',
        "assistant: ['book']",
        "tool: not allowed: too expensive",
        'assistant: {"forecast":"sunny in Rome"}; not allowed: too expensive',
    ],
    "order": [
        "200 ['/reservations', '/charges', '/shipments']",
        "permanent_error in ship",
        "['/reservations', '/charges', '/shipments', '/charges/2/refund', '/charges/2/refund', "
        "'/reservations/1/release']",
        "['ship did not work']",
    ],
    "reply": [
        "[{'to': 'Bo', 'text': 'Of course, it is on its way.', 'approved_by': 'Ann'}]",
        "[{'to': 'Cy', 'text': 'We are sorry.', 'why': 'too short'}]",
    ],
    "report": [
        "report 1 says 143",
        "south sold the most; 143 in all",
        "[('south', 0.1)]",
    ],
}
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "stub")


def test_every_example_is_looked_at() -> None:
    assert sorted(PRINTED) == EXAMPLES
    assert {path.stem for path in FOLDER.glob("*.yaml")} <= set(EXAMPLES)
    for name in EXAMPLES:
        assert f"{name}.py" in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", FOLDER / f"{name}.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == PRINTED[name]
    assert not any(tmp_path.iterdir())
