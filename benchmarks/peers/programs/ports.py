"""Ports of 127.0.0.1 that nobody listens on."""

import socket


def free_ports(count: int) -> list[int]:
    """`count` of them, all held at once while they are looked for, so that they differ."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
