"""Fan-out and fan-in: three shops are asked at once, and one report is sent.

The shop in the south is busy at first, and Keyrun retries the request. Run it:
python examples/report.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from stub import Answer, serving

import keyrun
from keyrun import Graph, step

SALES = {"north": [12, 30], "south": [50, 41, 3], "east": [7]}


class Shops:
    """Stands for the shops and the receiver of the report."""

    def __init__(self) -> None:
        self.busy = True
        self.reports: list[Any] = []

    def answer(self, method: str, path: str, body: Any) -> Answer:
        if method == "POST":
            self.reports.append(body)
            return 201, {"number": len(self.reports)}
        shop = path.rpartition("/")[2]
        if shop == "south" and self.busy:
            self.busy = False
            return 503, {"why": "busy"}
        return 200, {"amounts": SALES[shop]}


@step
async def summary(number: int, total: int) -> str:
    return f"report {number} says {total}"


async def main() -> None:
    report = Graph.from_file(Path(__file__).with_suffix(".yaml"), functions=[summary])
    shops = Shops()
    with serving(shops.answer) as server, TemporaryDirectory() as folder:
        async with keyrun.open_runtime(folder, workflows=[report]) as rt:
            run = await rt.submit(report, {"server": server, "day": "monday"}, key="monday")
            print(await run.result())
            history = await rt.history(run.run_id)
    print(shops.reports[0]["text"])
    print([(each.step, each.delay) for each in history if each.delay])


if __name__ == "__main__":
    trio.run(main)
