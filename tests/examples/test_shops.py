"""The shops on FastAPI, Django and Flask: real servers, killed in the middle of the orders."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest
import trio

from keyrun import open_reader
from tests.examples.servers import (
    DJANGO,
    FLASK,
    SHOPS,
    Client,
    Server,
    Shop,
    copy_example,
    serving,
)
from tests.faults.soaking import amount, shown

CUSTOMERS = [f"customer-{number}" for number in range(10)]
ORDERS_OF_A_CUSTOMER = 10
STATES = ("reserved", "shipped")


def order_ids(customer: str) -> list[str]:
    return [f"{customer}-order-{number}" for number in range(ORDERS_OF_A_CUSTOMER)]


def buy(server: Server, customer: str) -> list[str]:
    """Place the orders of a customer one after the other, and pay each after the next is placed.
    Return the results."""
    ids = order_ids(customer)
    with Client(server) as client:
        for order_id, before in zip(ids, [None, *ids], strict=False):
            client.order({"id": order_id, "customer": customer, "item": "tea"})
            if before is not None:
                client.pay(before)
        client.pay(ids[-1])
        return [client.result(order_id) for order_id in ids]


def wait_for_entries(shop: Shop, directory: Path, number: int) -> None:
    deadline = time.monotonic() + 180
    while len(shop.entries(directory)) < number:
        assert time.monotonic() < deadline, "the server does not work"
        time.sleep(0.005)


def finished_steps(directory: Path) -> tuple[set[str], int]:
    """Return the entries of the steps that are finished in the store, and the number of runs that
    have not ended."""

    async def read() -> tuple[set[str], int]:
        finished = set()
        unfinished = 0
        async with open_reader(directory / "state") as reader:
            for status in await reader.runs(limit=1000):
                history = await reader.history(status.run_id)
                done = [entry for entry in history if entry.event == "step_completed"]
                finished |= {
                    f"{status.run_id} {state}" for state, _ in zip(STATES, done, strict=False)
                }
                unfinished += status.ended_at is None
        return finished, unfinished

    return trio.run(read)


def check_order(entries: list[str]) -> None:
    """Check that each customer's orders were served completely, and one after the other. An entry
    whose step was interrupted may be there twice, one right behind the other."""
    for customer in CUSTOMERS:
        of_customer = [entry for entry in entries if entry.startswith(f"{customer}-")]
        assert list(dict.fromkeys(of_customer)) == [
            f"{order_id} {state}" for order_id in order_ids(customer) for state in STATES
        ]
        assert sorted(of_customer, key=of_customer.index) == of_customer


@attrs.frozen
class Killed:
    """What was there when a server was killed."""

    entries: list[str]
    finished: set[str]
    """The entries of the steps that are finished in the store."""
    unfinished_runs: int


def kill(shop: Shop, server: Server, directory: Path) -> Killed:
    server.kill()
    return Killed(shop.entries(directory), *finished_steps(directory))


@pytest.mark.parametrize("shop", SHOPS, ids=lambda shop: shop.name)
def test_orders_survive_kills_in_order_and_no_finished_step_runs_again(
    shop: Shop, tmp_path: Path
) -> None:
    total = len(CUSTOMERS) * ORDERS_OF_A_CUSTOMER * len(STATES)
    number_of_kills = amount(1, 8)
    kills = []
    with ThreadPoolExecutor(len(CUSTOMERS)) as pool, serving(shop, tmp_path) as server:
        results = [pool.submit(buy, server, customer) for customer in CUSTOMERS]
        for number in shown(range(number_of_kills), f"kills of {shop.name}"):
            wait_for_entries(shop, tmp_path, total * (number + 1) // (number_of_kills + 1))
            kills.append(kill(shop, server, tmp_path))
            server.start()
        for customer, result in zip(CUSTOMERS, results, strict=True):
            expected = [f"tea is on its way to {customer}"] * ORDERS_OF_A_CUSTOMER
            assert result.result(timeout=180) == expected
        output = server.stop()
    assert "Traceback" not in output
    entries = shop.entries(tmp_path)
    check_order(entries)
    for killed in kills:
        assert killed.unfinished_runs
        assert killed.finished
        assert killed.finished <= set(killed.entries)
        assert not killed.finished & set(entries[len(killed.entries) :])


def test_gunicorn_reloads_also_when_it_loads_the_application_before_it_forks(
    tmp_path: Path,
) -> None:
    with serving(FLASK, tmp_path, "--preload") as server:
        for order_id in ("before", "after"):
            with Client(server) as client:
                client.order({"id": order_id, "customer": "ann", "item": order_id})
                client.pay(order_id)
                assert client.result(order_id) == f"{order_id} is on its way to ann"
            server.reload()
        output = server.stop()
    assert "Traceback" not in output
    assert output.count("Booting worker") == 3


ASGI = """
import asyncio
import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webshop.settings")
application = get_asgi_application()

from django.http import HttpResponse
from django.urls import path

from webshop.orders import runtime
from webshop.urls import urlpatterns

async def result(request, order_id):
    return HttpResponse(
        await asyncio.to_thread(runtime().run(order_id).result, timeout=30)
    )

urlpatterns.insert(0, path("orders/<order_id>", result))
runtime()
"""


def test_the_shop_on_django_runs_under_asgi_with_sync_and_async_views(tmp_path: Path) -> None:
    (tmp_path / "webshop").mkdir()
    (tmp_path / "webshop/asgi.py").write_text(ASGI)
    uvicorn = ("-m", "uvicorn", "webshop.asgi:application", "--fd", "{fd}")
    with serving(attrs.evolve(DJANGO, command=uvicorn), tmp_path) as server:
        with Client(server) as client:
            client.order({"id": "order-7", "customer": "ann", "item": "tea"})
            client.pay("order-7")
            assert client.result("order-7") == "tea is on its way to ann"
        output = server.stop()
    assert "Traceback" not in output


AT_ONCE = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
{loading}
barrier = Barrier(8)
def request(number):
    barrier.wait()
    return runtime()
with ThreadPoolExecutor(8) as pool:
    print(len(set(pool.map(request, range(8)))), "runtime")
"""


@pytest.mark.parametrize(
    ("shop", "loading"),
    [
        (FLASK, "from app import runtime"),
        (DJANGO, "import django; django.setup(); from webshop.orders import runtime"),
    ],
    ids=["flask", "django"],
)
def test_several_first_requests_at_once_open_one_runtime(
    shop: Shop, loading: str, tmp_path: Path
) -> None:
    copy_example(shop, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE.format(loading=loading)],
        cwd=tmp_path,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "webshop.settings"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "1 runtime\n", done.stderr
