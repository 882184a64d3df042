"""`keyrun demo`: a service that takes orders, is killed in the middle of it, and loses nothing."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keyrun.demo.entry import command

__all__ = ["command"]


def __getattr__(name: str) -> Any:
    if name != "command":
        raise AttributeError(f"module 'keyrun.demo' has no attribute {name!r}")
    from keyrun.demo.entry import command

    return command
