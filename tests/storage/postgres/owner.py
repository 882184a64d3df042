"""A process that owns a namespace and commits all the time, or a process that waits for it."""

import sys
import time

import trio

from keyrun.storage import StoreError
from keyrun.storage.conformance.model import batch
from keyrun.storage.postgres import PostgresStore


def say(*words: object) -> None:
    """Print a line for the test."""
    print(*words, flush=True)


async def main(url: str, namespace: str, ttl: str) -> None:
    """Wait until the namespace is free, and commit until this process is told not to."""
    store = PostgresStore(url, namespace=namespace, ttl=float(ttl), unsafe=True)
    number = 0
    try:
        while True:
            try:
                await store.__aenter__()
                break
            except StoreError as error:
                if type(error).__name__ != "StoreLocked":
                    raise
                say("waits")
                await store.wait_until_free()
        say("owns", store.epoch, store.is_direct)
        while True:
            await store.commit(
                batch(
                    ("red", b"%06d" % number, b"%d" % store.epoch),
                    ("green", b"trusted", b"%d" % store.is_trusted()),
                )
            )
            number += 1
            say("committed", number, store.epoch, time.time())
            await trio.sleep(0.005)
    except StoreError as error:
        say(type(error).__name__, store.is_trusted(), error)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
