"""The command line. Each command is a module that is imported when the command is called.

No other part of Keyrun imports this package, so a program that uses Keyrun as a library does not
load `click` and `rich`.
"""

import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command `keyrun`."""
    from keyrun.cli.group import command

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that cannot show a letter gets its escape.
            stream.reconfigure(errors="backslashreplace")
    command(prog_name="keyrun")
