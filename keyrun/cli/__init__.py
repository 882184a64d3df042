"""The command line. Each command is a small module of its own, loaded when it is called for.

Nothing else in Keyrun imports this package: `click` and `rich` are only paid for by who types.
"""

import sys
from io import TextIOWrapper


def main() -> None:
    """The `keyrun` of the shell."""
    from keyrun.cli.group import command

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that cannot show a letter is no reason to fail.
            stream.reconfigure(errors="backslashreplace")
    command(prog_name="keyrun")
