"""A process that commits batches made up from a seed, and notes each when it is acknowledged."""

import sys
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import trio

from keyrun.storage import Batch, LmdbStore
from keyrun.storage.conformance.model import Rows, laid_on
from keyrun.storage.record import seal

TABLES = ("red", "green", "blue")
STORE = "far/away/store"
"""Below folders that are made with it: a power loss may take those, too."""
NOTES = "notes"

LAX: dict[str, dict[str, bool]] = {
    "strict": {},
    "no sync": {"sync": False},
    "no metasync": {"metasync": False},
}
"""What the flags of LMDB are changed to."""


def batches(seed: int, commits: int) -> list[Batch]:
    """What is committed: puts and deletes, small and over several pages, few keys so that they
    meet."""
    random = Random(seed)
    made = []
    for _ in range(commits):
        batch = Batch()
        for _ in range(random.randint(1, 10)):
            table = random.choice(TABLES[: random.randint(1, 3)])
            key = b"%03d" % random.randrange(60)
            if random.random() < 0.2:
                batch.delete(table, key)
            else:
                size = random.choice((10, 100, 600, 3000, 9000))
                batch.put(table, key, seal(table, key, [random.randbytes(size)]))
        made.append(batch)
    return made


def states(seed: int, commits: int) -> list[Rows]:
    """What is in the store after each commit, and before the first."""
    found: list[Rows] = [{}]
    for batch in batches(seed, commits):
        found.append(laid_on(found[-1], batch.tables))
    return found


async def main(folder: Path, seed: int, commits: int, committer: Any) -> None:
    """Commit them, and open the store anew after one half."""
    made = batches(seed, commits)
    halves = (made[: commits // 2], made[commits // 2 :])
    with (folder / NOTES).open("ab", buffering=0) as notes:
        for half in halves:
            async with LmdbStore(folder / STORE, committer=committer) as store:
                for batch in half:
                    notes.write(b"begun\n")
                    await store.commit(batch)
                    notes.write(b"acknowledged\n")


if __name__ == "__main__":
    lax = LAX[sys.argv[5]]
    if lax:
        strict = lmdb.open

        def open_lax(*args: Any, **options: Any) -> lmdb.Environment:
            return strict(*args, **options | lax)

        lmdb.open = open_lax  # type: ignore[assignment]
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
