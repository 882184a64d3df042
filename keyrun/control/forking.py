"""Forks: close in a forked child the sockets that belong to its parent.

A child that keeps them open would hide from the other end that the parent has ended.
"""

import os
import socket
from contextlib import suppress
from typing import Any
from weakref import WeakSet

_sockets: WeakSet[Any] = WeakSet()


def belongs_here(sock: "socket.socket | Any") -> None:
    """Close a socket, of Trio or of Python, in children that are forked from this process."""
    _sockets.add(sock)


def _forked() -> None:
    for sock in list(_sockets):
        with suppress(OSError, ValueError):
            descriptor = sock.detach()
            if descriptor >= 0:
                os.close(descriptor)
    _sockets.clear()


os.register_at_fork(after_in_child=_forked)
