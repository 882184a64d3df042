"""Whatever a program started is gone when its block is left, however that happens."""

import fcntl
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.peers import child, isolation
from benchmarks.peers.child import ROOT, Child, Failed
from benchmarks.peers.programs.order import Order

PROGRAM = "tests.peers.leaver"


@pytest.fixture(params=["isolated", "bare"])
def order(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Order:
    if request.param == "bare":
        monkeypatch.setattr(child, "prefix", lambda: ())
    elif not isolation.prefix():
        pytest.skip("namespaces are not allowed here")
    return Order(act="linger", folder=str(tmp_path))


def started(order: Order, act: str = "linger", timeout: float = 60.0) -> Child:
    return Child(sys.executable, PROGRAM, Order(act=act, folder=order.folder), timeout=timeout)


def assert_released(order: Order) -> None:
    """The lock of the process that was left behind is free, at the latest in a moment."""

    def take() -> None:
        with (Path(order.folder) / "held").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    taker = Thread(target=take, daemon=True)
    taker.start()
    taker.join(timeout=20)
    assert not taker.is_alive(), "a process is left over"


def test_the_lock_tells_of_a_process_that_is_left(order: Order) -> None:
    with started(order) as program:
        program.answer()
        with (Path(order.folder) / "held").open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_leaving_the_block_kills_all_that_was_started(order: Order) -> None:
    with started(order) as program:
        assert program.answer() == {"ready": True}
    assert_released(order)


def test_ctrl_c_kills_all_that_was_started(order: Order) -> None:
    with pytest.raises(KeyboardInterrupt):
        with started(order) as program:
            program.answer()
            raise KeyboardInterrupt
    assert_released(order)


def test_a_program_that_falls_over_takes_along_what_it_started(order: Order) -> None:
    with started(order, "fail") as program, pytest.raises(Failed, match=r"^fell over$"):
        program.answer()
    assert_released(order)


def test_a_program_that_ends_takes_along_what_it_started(order: Order) -> None:
    with started(order, "finish") as program:
        assert program.answer() == {"runs": 1}
    assert_released(order)


def test_a_program_that_takes_too_long_is_given_up(order: Order) -> None:
    with started(order, timeout=5.0) as program:
        program.answer()
        with pytest.raises(Failed, match="longer than 5 seconds"):
            program.answer()
    assert_released(order)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_programs_end_with_those_who_started_them(number: int, tmp_path: Path) -> None:
    order = Order(act="linger", folder=str(tmp_path))
    command = [sys.executable, "-m", "tests.peers.guardian", order.dump()]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as guardian:
        assert guardian.stdout is not None
        assert guardian.stdout.readline().strip() == "{'ready': True}"
        guardian.send_signal(number)
    assert_released(order)


def test_what_is_run_from_the_sources_is_compiled_once_like_what_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("LANG", "C")
    assert "PYTHONDONTWRITEBYTECODE" not in child.variables()
    assert child.variables()["LANG"] == "C"
