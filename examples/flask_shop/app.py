"""A shop whose orders survive `kill -9`: gunicorn app:app"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock

from flask import Flask, request

import keyrun.sync
from keyrun import Context, UnknownRun, step, workflow


@dataclass
class Order:
    id: str
    customer: str
    item: str


@step  # a plain function runs in a thread, so it may block
def record(entry: str) -> None:
    with Path("ledger.txt").open("a") as ledger:
        ledger.write(f"{entry}\n")


@workflow
async def checkout(ctx: Context, order: Order) -> str:
    await ctx.step(record, f"{order.id} reserved")
    await ctx.wait_signal("paid")
    await ctx.step(record, f"{order.id} shipped")
    return f"{order.item} is on its way to {order.customer}"


opening = Lock()


def runtime() -> keyrun.sync.Runtime:  # gunicorn.conf.py opens it when a worker starts
    with opening:  # a development server may have two first requests at once
        return started()


@cache
def started() -> keyrun.sync.Runtime:
    return keyrun.sync.start("state", workflows=[checkout], when_locked="wait")


app = Flask(__name__)


@app.post("/orders")
def submit() -> tuple[str, int]:
    order = Order(**request.get_json())
    runtime().submit(checkout, order, key=order.customer, run_id=order.id)
    return "", 202


@app.post("/orders/<order_id>/paid")
def paid(order_id: str) -> tuple[str, int]:  # a webhook may call this more than once
    runtime().signal(order_id, "paid", signal_id="paid")
    return "", 202


@app.get("/orders/<order_id>")
def result(order_id: str) -> str:  # waits until the order has shipped
    return str(runtime().run(order_id).result(timeout=30))


@app.errorhandler(UnknownRun)
def unknown(error: UnknownRun) -> tuple[str, int]:
    return str(error), 404
