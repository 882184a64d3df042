"""What the pages of the shops say works as pasted."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.servers import SHOPS, Shop, copy_example


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def pasted(shop: Shop, port: int) -> str:
    """Return the commands of the README. The packages are there already."""
    [commands] = re.findall(r"^```sh\n(.*?)^```$", shop.readme, re.DOTALL | re.MULTILINE)
    install, *rest = commands.splitlines()
    assert install == 'pip install -e "../..[examples]"'
    return "\n".join(rest).replace(":8000", f":{port}")


END_ALL_JOBS = """
trap 'kill -9 -- $(jobs -p | sed s/^/-/) 2> /dev/null; true' EXIT
trap 'exit 1' TERM
"""


@pytest.mark.parametrize("shop", SHOPS, ids=lambda shop: shop.name)
def test_the_commands_of_a_readme_print_what_it_says(shop: Shop, tmp_path: Path) -> None:
    port = free_port()
    copy_example(shop, tmp_path)
    (tmp_path / ".curlrc").write_text("max-time = 120\nnoproxy = *\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    servers = {"GUNICORN_CMD_ARGS": f"--bind 127.0.0.1:{port}", "UVICORN_PORT": str(port)}
    with subprocess.Popen(
        # With job control, as at the prompt: every job is a process group.
        ["bash", "-c", f"set -m{END_ALL_JOBS}{pasted(shop, port)}\nwait"],
        cwd=tmp_path,
        env={**os.environ, **servers, "PATH": path, "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=300)
        finally:
            process.terminate()
    assert "and prints `tea is on its way to ann`" in shop.readme
    assert "tea is on its way to ann" in output, output
    assert "Traceback" not in output, output
