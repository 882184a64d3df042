"""An application whose workers share a store: `uvicorn tests.hosting.worker_app:app --workers 4`.

`STORE` and `LEDGER` in the environment name the store and a file to which each step appends.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

import keyrun.asyncio
from keyrun import Context, Entity, entity, step, workflow


def note(line: str) -> None:
    """Append a line to the ledger, whole."""
    ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(ledger, f"{line}\n".encode())
    os.close(ledger)


@step
async def reserve(name: str) -> str:
    note(f"{name} 1")
    return name


@step
async def ship(name: str) -> str:
    note(f"{name} 2")
    return name


@workflow
async def order(ctx: Context, name: str) -> str:
    return await ctx.step(ship, await ctx.step(reserve, name))


@entity
class Account(Entity):
    async def deposit(self) -> int:
        self.state["balance"] = balance = self.state.get("balance", 0) + 1
        return int(balance)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with keyrun.asyncio.open_runtime(
        os.environ["STORE"], workflows=[order], entities=[Account], when_locked="join"
    ) as app.state.rt:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/pid")
async def pid() -> int:
    return os.getpid()


@app.post("/orders/{key}/{name}")
async def submit(key: str, name: str) -> str:
    run = await app.state.rt.submit(order, name, key=key, run_id=name)
    return str(run.run_id)


@app.get("/orders/{name}")
async def result(name: str) -> str:
    return str(await app.state.rt.run(name).result(timeout=60))


@app.post("/deposits/{key}/{request_id}")
async def deposit(key: str, request_id: str) -> int:
    account = app.state.rt.entity(Account, key, request_id=request_id)
    return int(await account.deposit())


@app.get("/events")
async def events() -> StreamingResponse:
    async def lines() -> AsyncIterator[str]:
        async with app.state.rt.events(kinds=["run_succeeded"]) as stream:
            yield "open\n"
            async for event in stream:
                yield f"{event.kind} {event.run_id}\n"

    return StreamingResponse(lines())
