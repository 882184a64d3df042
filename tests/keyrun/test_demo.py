"""The demo proves what it says, and would say so if it could not."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from keyrun import demo
from keyrun.actors import ActorSystem
from keyrun.demo import BALANCES, JOURNAL, Account, Acknowledgement, Ledger, pack, prove
from keyrun.storage import Batch, LmdbStore, MemoryStore, Store, StoreCorrupt
from keyrun.storage.record import seal

ACCOUNTS = 3
DEPOSITS = 5


async def bank(store: Store, numbers: range) -> list[Acknowledgement]:
    """Deposit `numbers` to each account in turn. Gives what was acknowledged."""
    told: list[Acknowledgement] = []
    async with store:
        ledger = await Ledger.open(store, told.append)
        async with ActorSystem[int, int, None](partial(Account, ledger)) as accounts:
            for number in numbers:
                for account in range(ACCOUNTS):
                    await accounts.ask(account, number)
    return told


async def broken(path: Path) -> set[str]:
    """The promises that do not hold."""
    _, promises = await prove(path, [DEPOSITS] * ACCOUNTS)
    return {promise for promise, accounts in promises.items() if accounts}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "keyrun.demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_demo_is_killed_and_proves_that_nothing_was_lost() -> None:
    done = run("--seconds", "0.6", "--accounts", "20", "--kills", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[-2:] for line in lines if line.startswith("process")] == [
        ["kill", "-9"],
        ["kill", "-9"],
        ["deposits", "closed"],
    ]
    assert sum(line.endswith(" yes") for line in lines) == 4
    assert max(map(len, lines)) <= 60
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seconds", "0"], "--seconds must be more than 0, got 0"),
        (["--seconds", "nan"], "--seconds must be more than 0, got nan"),
        (["--accounts", "0"], "--accounts must be 1 to 100000, got 0"),
        (["--kills", "-1"], "--kills must be at least 0, got -1"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refusal:
        demo.main(arguments)
    assert refusal.value.code == 2
    assert message in capsys.readouterr().err


def test_the_demo_fails_when_a_promise_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live = demo.live

    def forgetful(path: Path, acknowledged: list[int], *rest: object) -> demo.Life:
        life = live(path, acknowledged, *rest)  # type: ignore[arg-type]
        acknowledged[1] += 1_000_000
        return life

    monkeypatch.setattr(demo, "live", forgetful)
    assert demo.main(["--seconds", "0.1", "--accounts", "2", "--kills", "0"]) == 1
    promises = capsys.readouterr().out.splitlines()[-4:]
    assert [line[42:] for line in promises] == ["NO (account 1)", "yes", "yes", "yes"]


def test_the_demo_fails_when_the_store_is_damaged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def damaged(*_: object) -> None:
        raise StoreCorrupt("the record b'7' in table 'journal' is damaged")

    monkeypatch.setattr(demo, "prove", damaged)
    assert demo.main(["--seconds", "0.1", "--accounts", "2", "--kills", "0"]) == 1
    assert "FAILED: the record b'7' in table 'journal' is damaged" in capsys.readouterr().out


def test_the_demo_fails_when_the_bank_cannot_even_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(SystemExit, match="ended by itself, with exit code 1"):
        demo.main(["--seconds", "0.1"])


async def test_a_deposit_that_comes_again_is_acknowledged_again_and_stored_once() -> None:
    store = MemoryStore()
    await bank(store, range(1, 4))
    told = await bank(store, range(2, 6))
    assert [(t.number, t.repeated) for t in told if t.account == 0] == [
        (2, True),
        (3, True),
        (4, False),
        (5, False),
    ]
    async with store:
        assert len(await store.scan(JOURNAL)) == 5 * ACCOUNTS


async def test_the_proof_holds_for_a_bank_that_was_left_alone(tmp_path: Path) -> None:
    told = await bank(LmdbStore(tmp_path), range(1, DEPOSITS + 1))
    assert len(told) == ACCOUNTS * DEPOSITS
    assert await broken(tmp_path) == set()


def lose_one_in_the_middle(batch: Batch) -> None:
    batch.delete(JOURNAL, pack(4))


def lose_the_last(batch: Batch) -> None:
    batch.delete(JOURNAL, pack(ACCOUNTS * DEPOSITS - 1))


def double_one(batch: Batch) -> None:
    place = pack(1000)
    batch.put(JOURNAL, place, seal(JOURNAL, place, [0, DEPOSITS, 6]))


def swap_two_of_one_account(batch: Batch) -> None:
    for place, number in ((pack(0), 2), (pack(ACCOUNTS), 1)):
        batch.put(JOURNAL, place, seal(JOURNAL, place, [0, number, 1 + number]))


def lift_a_balance(batch: Batch) -> None:
    batch.put(BALANCES, pack(1), seal(BALANCES, pack(1), [DEPOSITS, 1_000_000]))


THERE = "every acknowledged deposit is there"
ORDER = "each account's deposits are in order"
ONCE = "nothing is doubled"
BALANCE = "every balance is the sum of its deposits"


@pytest.mark.parametrize(
    ("tamper", "expected"),
    [
        (lose_one_in_the_middle, {THERE, BALANCE}),
        (lose_the_last, {THERE, BALANCE}),
        (double_one, {ONCE, BALANCE}),
        (swap_two_of_one_account, {ORDER}),
        (lift_a_balance, {BALANCE}),
    ],
)
async def test_the_proof_fails_on_a_store_that_was_tampered_with(
    tmp_path: Path, tamper: Callable[[Batch], None], expected: set[str]
) -> None:
    await bank(LmdbStore(tmp_path), range(1, DEPOSITS + 1))
    async with LmdbStore(tmp_path) as store:
        batch = Batch()
        tamper(batch)
        await store.commit(batch)
    assert await broken(tmp_path) == expected


async def test_a_damaged_record_is_no_proof_at_all(tmp_path: Path) -> None:
    await bank(LmdbStore(tmp_path), range(1, DEPOSITS + 1))
    async with LmdbStore(tmp_path) as store:
        raw = await store.get(JOURNAL, pack(4))
        assert raw is not None
        batch = Batch()
        batch.put(JOURNAL, pack(4), raw[:-1] + bytes([raw[-1] ^ 1]))
        await store.commit(batch)
    with pytest.raises(StoreCorrupt, match="'journal' is damaged"):
        await broken(tmp_path)
