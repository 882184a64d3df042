"""A saga: an order that cannot be shipped is undone, the payment first and then the reservation.

The first refund fails, and Keyrun retries it. Run it: python examples/order.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from stub import Answer, serving

import keyrun
from keyrun import Graph, RunFailed


class Shop:
    """Stands for the services that the flow calls. It cannot ship to the moon."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.reasons: list[str] = []
        self.hiccups = 1

    def answer(self, method: str, path: str, body: Any) -> Answer:
        self.asked.append(path)
        if path == "/shipments" and body["to"] == "moon":
            return 409, {"why": "nobody goes there"}
        if path.endswith("/refund"):
            if self.hiccups:
                self.hiccups -= 1
                return 503, {}
            self.reasons.append(body["why"])
        return 200, {"number": len(self.asked)}


async def main() -> None:
    order = Graph.from_file(Path(__file__).with_suffix(".yaml"))
    shop = Shop()
    with serving(shop.answer) as server, TemporaryDirectory() as folder:
        async with keyrun.open_runtime(folder, workflows=[order]) as rt:
            wanted = {"shop": server, "item": "lamp", "count": 2, "amount": 60}
            run = await rt.submit(order, {**wanted, "customer": "ann"}, key="ann")
            print((await run.result())["status"], shop.asked)
            shop.asked.clear()
            run = await rt.submit(order, {**wanted, "customer": "moon"}, key="moon")
            try:
                await run.result()
            except RunFailed as error:
                print(error.failure.kind, "in", error.failure.step)
    print(shop.asked)
    print(shop.reasons)


if __name__ == "__main__":
    trio.run(main)
