"""The notebook runs in a kernel, where an asyncio loop already runs, and has the outputs that it
shows."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parent.parent.parent / "examples" / "notebook.ipynb"


def outputs(notebook: Path) -> list[list[Any]]:
    """Return the text that each cell prints or has as its value, and the errors."""
    cells = json.loads(notebook.read_text())["cells"]
    return [
        [output.get("data", {}).get("text/plain", output) for output in cell["outputs"]]
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def test_the_notebook_has_the_outputs_that_it_shows(tmp_path: Path) -> None:
    copy = shutil.copy(NOTEBOOK, tmp_path)
    command = Path(sys.executable).parent / "jupyter-execute"
    done = subprocess.run([command, "--inplace", copy], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert outputs(tmp_path / NOTEBOOK.name) == outputs(NOTEBOOK)
    assert (tmp_path / "state").is_dir()
