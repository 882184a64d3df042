"""`keyrun stress`: test the runtime with faults and kills, and check every guarantee.

The command is imported when it is called, so that a child process, which is started many times,
does not load the code that draws on the terminal.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keyrun.stress.entry import command

__all__ = ["command"]


def __getattr__(name: str) -> Any:
    if name != "command":
        raise AttributeError(f"module 'keyrun.stress' has no attribute {name!r}")
    from keyrun.stress.entry import command

    return command
