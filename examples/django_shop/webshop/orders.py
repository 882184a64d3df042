"""The workflow of an order, and the runtime that runs it."""

from functools import cache
from threading import Lock

from django.db import close_old_connections

import keyrun.sync
from keyrun import Context, step, workflow
from webshop.models import Entry


@step  # a plain function runs in a thread, so it may use the ORM
def record(text: str) -> None:
    close_old_connections()  # Django does this itself only for requests
    Entry.objects.create(text=text)


@workflow
async def checkout(ctx: Context, order: dict[str, str]) -> str:
    await ctx.step(record, f"{order['id']} reserved")
    await ctx.wait_signal("paid")
    await ctx.step(record, f"{order['id']} shipped")
    return f"{order['item']} is on its way to {order['customer']}"


opening = Lock()


def runtime() -> keyrun.sync.Runtime:  # gunicorn.conf.py opens it when a worker starts
    with opening:  # a development server may have two first requests at once
        return started()


@cache
def started() -> keyrun.sync.Runtime:
    return keyrun.sync.start("state", workflows=[checkout], when_locked="wait")
