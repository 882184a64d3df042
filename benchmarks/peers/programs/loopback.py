"""python loopback.py COMMAND...: bring up the loopback of a network namespace, then become COMMAND.

A namespace begins with its loopback down, and not every machine has a command to bring it up.
"""

import fcntl
import os
import socket
import struct
import sys

SIOCSIFFLAGS = 0x8914
IFF_UP = 1


def main() -> None:
    """Do it."""
    with socket.socket() as any_socket:
        request = struct.pack("16sh", b"lo", IFF_UP)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
