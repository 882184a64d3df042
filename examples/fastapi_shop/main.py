"""A shop whose orders survive `kill -9`: uvicorn main:app"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from pool import open_pool
from pydantic import BaseModel

from keyrun import Context, UnknownRun, current_step, step, workflow
from keyrun.asyncio import open_runtime


class Order(BaseModel):
    id: str
    customer: str
    item: str


@step(asyncio=True)  # runs on the loop of the server, so the pool works here
async def record(entry: str) -> None:
    await current_step().resources.execute("INSERT INTO ledger VALUES (?)", entry)


@workflow
async def checkout(ctx: Context, order: Order) -> str:
    await ctx.step(record, f"{order.id} reserved")
    await ctx.wait_signal("paid")
    await ctx.step(record, f"{order.id} shipped")
    return f"{order.item} is on its way to {order.customer}"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with open_runtime("state", workflows=[checkout], lifespan=open_pool) as app.state.rt:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def submit(order: Order) -> None:
    await app.state.rt.submit(checkout, order, key=order.customer, run_id=order.id)


@app.post("/orders/{order_id}/paid", status_code=202)
async def paid(order_id: str) -> None:  # a webhook may call this more than once
    await app.state.rt.signal(order_id, "paid", signal_id="paid")


@app.get("/orders/{order_id}")
async def result(order_id: str) -> str:  # waits until the order has shipped
    return str(await app.state.rt.run(order_id).result(timeout=30))


@app.exception_handler(UnknownRun)
async def unknown(request: Request, error: UnknownRun) -> Response:
    return Response(str(error), status_code=404)
