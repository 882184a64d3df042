"""python -m keyrun.demo: a bank that is killed in the middle of its work, and loses nothing.

A child process runs an actor per account and commits every deposit to a store. This process is its
customers' memory: it writes down what was acknowledged, kills the bank, starts it again, and in
the end proves from the store that every promise was kept.
"""

import argparse
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from textwrap import fill
from threading import Timer
from time import perf_counter
from typing import NamedTuple

import attrs
import trio

from keyrun.actors import Actor, ActorSystem
from keyrun.errors import KeyrunError
from keyrun.storage import Batch, LmdbStore, Store
from keyrun.storage.record import seal, unseal

JOURNAL = "journal"
"""position -> account, number of the deposit, amount; for all accounts, as it happened."""
BALANCES = "balances"
"""account -> number of the last deposit, balance"""

PAGE = 10_000


def pack(number: int) -> bytes:
    """A key that sorts as the number does."""
    return number.to_bytes(8)


class Acknowledgement(NamedTuple):
    """What the bank tells a customer: this deposit is on the disk. One line in the pipe."""

    account: int
    number: int
    repeated: int
    commits: int


Acknowledge = Callable[[Acknowledgement], object]


@attrs.define
class Ledger:
    """What all accounts share: the store, and the next free place in its journal."""

    store: Store
    acknowledge: Acknowledge
    places: Iterator[int]

    @classmethod
    async def open(cls, store: Store, acknowledge: Acknowledge) -> "Ledger":
        """Go on after the last entry."""
        last = await store.scan(JOURNAL, reverse=True, limit=1)
        return cls(store, acknowledge, count(int.from_bytes(last[0][0]) + 1 if last else 0))


class Account(Actor[int, None]):
    """One account. Its messages are numbers of deposits, in order; some may come again."""

    __slots__ = ("account", "balance", "last", "ledger")

    def __init__(self, ledger: Ledger, account: int) -> None:
        self.ledger = ledger
        self.account = account
        self.last = self.balance = 0

    async def on_start(self) -> None:
        key = pack(self.account)
        raw = await self.ledger.store.get(BALANCES, key)
        if raw is not None:
            self.last, self.balance = unseal(BALANCES, key, raw)

    async def receive(self, number: int) -> None:
        # A deposit that is known was stored by a bank that died before it could say so.
        repeated = number <= self.last
        if not repeated:
            await self.deposit(number, amount=1 + number % 100)
        commits = self.ledger.store.statistics().commits
        self.ledger.acknowledge(Acknowledgement(self.account, number, repeated, commits))

    async def deposit(self, number: int, amount: int) -> None:
        """Both records or none; the commit is shared with all accounts that wait for one."""
        self.last = number
        self.balance += amount
        place, key = pack(next(self.ledger.places)), pack(self.account)
        batch = Batch()
        batch.put(JOURNAL, place, seal(JOURNAL, place, [self.account, number, amount]))
        batch.put(BALANCES, key, seal(BALANCES, key, [self.last, self.balance]))
        await self.ledger.store.commit(batch)


async def serve(path: Path, acknowledged: Sequence[int]) -> None:
    """The bank, until SIGTERM: its customers go on after what was acknowledged to them."""

    def acknowledge(acknowledgement: Acknowledgement) -> None:
        os.write(1, b"%d %d %d %d\n" % acknowledgement)

    async def customer(account: int, last: int) -> None:
        for number in count(last + 1):
            await bank.tell(account, number)

    async with LmdbStore(path) as store:
        ledger = await Ledger.open(store, acknowledge)
        async with ActorSystem[int, int, None](
            partial(Account, ledger), mailbox_capacity=4
        ) as bank:
            async with trio.open_nursery() as customers:
                for account, last in enumerate(acknowledged):
                    customers.start_soon(customer, account, last)
                with trio.open_signal_receiver(signal.SIGTERM) as signals:
                    await anext(signals)
                    customers.cancel_scope.cancel()


@attrs.define
class Life:
    """What was seen of one process of the bank."""

    deposits: int = 0
    repeated: int = 0
    commits: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Life") -> "Life":
        pairs = zip(attrs.astuple(self), attrs.astuple(other), strict=True)
        return Life(*map(sum, pairs))


def live(path: Path, acknowledged: list[int], seconds: float, end: signal.Signals) -> Life:
    """Run the bank, end it `seconds` after its first acknowledgement, note all it acknowledged."""
    life, started = Life(), 0.0
    command = [sys.executable, "-m", "keyrun.demo", "--serve", str(path)]
    # In a session of its own, so that Ctrl-C is for this process to answer.
    with Popen(command, stdin=PIPE, stdout=PIPE, start_new_session=True) as bank:
        assert bank.stdin is not None
        assert bank.stdout is not None
        timer = Timer(seconds, bank.send_signal, [end])
        try:
            with suppress(BrokenPipeError), bank.stdin as stdin:
                stdin.write(json.dumps(acknowledged).encode())
            for line in bank.stdout:
                if not started:
                    started = perf_counter()
                    timer.start()
                told = Acknowledgement(*map(int, line.split()))
                acknowledged[told.account] = told.number
                life.repeated += told.repeated
                life.deposits += not told.repeated
                life.commits = told.commits
        except BaseException:
            bank.kill()
            raise
        finally:
            timer.cancel()
    if bank.returncode != (-end if end is signal.SIGKILL else 0):
        raise SystemExit(f"the bank ended by itself, with exit code {bank.returncode}")
    life.seconds = perf_counter() - started
    return life


async def prove(path: Path, acknowledged: Sequence[int]) -> tuple[int, dict[str, list[int]]]:
    """How many deposits the store holds; and the promises, with the accounts that contradict."""
    deposits: list[list[int]] = [[] for _ in acknowledged]
    sums = [0] * len(acknowledged)
    balances: list[list[int]] = [[0, 0] for _ in acknowledged]
    async with LmdbStore(path, read_only=True) as store:
        start = b""
        while rows := await store.scan(JOURNAL, start=start, limit=PAGE):
            for place, raw in rows:
                account, number, amount = unseal(JOURNAL, place, raw)
                deposits[account].append(number)
                sums[account] += amount
            start = rows[-1][0] + b"\0"
        for key, raw in await store.scan(BALANCES):
            balances[int.from_bytes(key)] = unseal(BALANCES, key, raw)

    def against(holds: Callable[[int, list[int]], bool]) -> list[int]:
        return [account for account, stored in enumerate(deposits) if not holds(account, stored)]

    return sum(map(len, deposits)), {
        "every acknowledged deposit is there": against(
            lambda account, stored: set(range(1, acknowledged[account] + 1)) <= set(stored)
        ),
        "each account's deposits are in order": against(lambda _, stored: stored == sorted(stored)),
        "nothing is doubled": against(lambda _, stored: len(stored) == len(set(stored))),
        "every balance is the sum of its deposits": against(
            lambda account, stored: balances[account] == [max(stored, default=0), sums[account]]
        ),
    }


def demonstrate(path: Path, *, seconds: float, accounts: int, kills: int) -> bool:
    """Live, die, and prove. Returns whether every promise was kept."""
    acknowledged = [0] * accounts
    total = Life()
    print(f"a bank of {accounts} accounts, to be killed {kills} times\n")
    for number in range(1, kills + 2):
        how, end = ("kill -9", signal.SIGKILL) if number <= kills else ("closed", signal.SIGTERM)
        life = live(path, acknowledged, seconds / (kills + 1), end)
        print(
            f"process {number}  {life.seconds:4.1f} s  {life.deposits:>9,} deposits  {how}",
            flush=True,
        )
        total += life
    stored, promises = trio.run(prove, path, acknowledged)
    print(f"""
{total.deposits / total.seconds:>9,.0f}  deposits per second, each on the disk
{total.deposits / max(total.commits, 1):>9,.0f}  deposits per commit
{total.repeated:>9,}  stored but not acknowledged, so sent again
{stored:>9,}  deposits in the store
""")
    for promise, broken in promises.items():
        text = f"NO (account {broken[0]})" if broken else "yes"
        if sys.stdout.isatty():
            text = f"\x1b[{31 if broken else 32}m{text}\x1b[0m"
        print(f"{promise:<42}{text}")
    return not any(promises.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if the proof succeeds, 1 if it fails."""
    parser = argparse.ArgumentParser(prog="python -m keyrun.demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8, help="how long to work (default 8)")
    parser.add_argument("--accounts", type=int, default=300, help="how many keys (default 300)")
    parser.add_argument("--kills", type=int, default=2, help="how often to kill it (default 2)")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        # Without the process that reads the acknowledgements there is nobody to work for.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        trio.run(serve, options.serve, json.load(sys.stdin))
        return 0
    if not 0 < options.seconds < math.inf:
        parser.error(f"--seconds must be more than 0, got {options.seconds:g}")
    if not 1 <= options.accounts <= 100_000:
        parser.error(f"--accounts must be 1 to 100000, got {options.accounts}")
    if options.kills < 0:
        parser.error(f"--kills must be at least 0, got {options.kills}")
    with TemporaryDirectory(prefix="keyrun-demo-") as folder:
        try:
            kept = demonstrate(
                Path(folder),
                seconds=options.seconds,
                accounts=options.accounts,
                kills=options.kills,
            )
        except KeyrunError as error:
            print(fill(f"FAILED: {error}", 60))
            return 1
        except KeyboardInterrupt:
            return 130
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
