"""`keyrun stress`: hammers the engine with faults and kills, and checks every promise after.

The command is imported when it is asked for: a child that is started over and over shall not wait
for what only draws on a terminal.
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
