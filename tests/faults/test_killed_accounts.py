"""Accounts whose process is killed again and again: no deposit is lost, and none is made twice."""

import signal
from pathlib import Path

import pytest
import trio

from keyrun import Entity, entity, open_runtime
from tests.faults.soaking import amount
from tests.storage.processes import line, running_python

KEYS, CALLERS, DEPOSITS, KILLS = 4, 3, amount(40, 1000), amount(3, 40)

CLIENTS = """
import sys, trio
from keyrun import open_runtime
from keyrun.storage import LmdbStore
from tests.faults.test_killed_accounts import CALLERS, DEPOSITS, KEYS, Account

async def client(rt, key, caller):
    for number in range(1, DEPOSITS + 1):
        request_id = f"{caller}-{number}"
        await rt.call(Account, key, "deposit", caller, number, request_id=request_id)
        print(key, caller, number, flush=True)

async def main(path, committer):
    async with open_runtime(LmdbStore(path, committer=committer), entities=[Account]) as rt:
        async with trio.open_nursery() as nursery:
            for key in range(KEYS):
                for caller in range(CALLERS):
                    nursery.start_soon(client, rt, str(key), str(caller))
    print("done", flush=True)

trio.run(main, *sys.argv[1:])
"""


@entity
class Account(Entity):
    async def deposit(self, caller: str, amount: int) -> int:
        balance: int = self.state.get("balance", 0) + amount
        self.state["balance"] = balance
        self.state.setdefault("deposits", {}).setdefault(caller, []).append(amount)
        return balance

    async def statement(self) -> tuple[int, dict[str, list[int]]]:
        return self.state.get("balance", 0), self.state.get("deposits", {})


Told = dict[tuple[str, str], int]
"""The last deposit that each caller heard of, by key."""


@pytest.mark.parametrize("committer", ["inline", "process"])
def test_a_balance_is_never_wrong_through_kill_9(tmp_path: Path, committer: str) -> None:
    """The clients begin anew each time with the same request ids, as if none had heard a thing."""
    store, told, kills = tmp_path / "store", Told(), 0
    total = KEYS * CALLERS * DEPOSITS
    while not (done := killed(store, committer, told, (kills + 1) * total // (KILLS + 2))):
        kills += 1
        trio.run(check, store, told)
        if kills == KILLS:
            done = killed(store, committer, told, total + 1)
            break
    assert done
    assert kills == KILLS
    assert set(told.values()) == {DEPOSITS}
    trio.run(check, store, told)


def killed(store: Path, committer: str, told: Told, after: int) -> bool:
    """Let the clients run, and kill them when they were told so much. Says whether they finished
    before."""
    with running_python(CLIENTS, store, committer) as process:
        for _ in range(after):
            said = line(process)
            if said == "done":
                return True
            key, caller, number = said.split()
            told[key, caller] = max(int(number), told.get((key, caller), 0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        return False


async def check(store: Path, told: Told) -> None:
    async with open_runtime(store, entities=[Account]) as rt:
        for key in range(KEYS):
            balance, deposits = await rt.entity(Account, str(key)).statement()
            for caller, made in deposits.items():
                # In order and each once; the last may have been made with nobody told.
                assert made == list(range(1, len(made) + 1))
                assert len(made) >= told.get((str(key), caller), 0)
            assert balance == sum(map(sum, deposits.values()))
