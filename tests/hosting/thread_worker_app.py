"""The application of `worker_app` for gunicorn, whose workers have threads."""

import os
from collections.abc import Iterator
from functools import cache

from flask import Flask, Response

import keyrun.sync
from tests.hosting.worker_app import Account, order


@cache
def runtime() -> keyrun.sync.Runtime:
    """The runtime of the worker."""
    return keyrun.sync.start(
        os.environ["STORE"], workflows=[order], entities=[Account], when_locked="join"
    )


app = Flask(__name__)


@app.get("/pid")
def pid() -> str:
    return str(os.getpid())


@app.post("/orders/<key>/<name>")
def submit(key: str, name: str) -> str:
    return runtime().submit(order, name, key=key, run_id=name).run_id


@app.get("/orders/<name>")
def result(name: str) -> str:
    return f'"{runtime().run(name).result(timeout=60)}"'


@app.post("/deposits/<key>/<request_id>")
def deposit(key: str, request_id: str) -> str:
    return str(runtime().entity(Account, key, request_id=request_id).deposit())


@app.get("/events")
def events() -> Response:
    def lines() -> Iterator[str]:
        with runtime().events(kinds=["run_succeeded"]) as stream:
            yield "open\n"
            for event in stream:
                yield f"{event.kind} {event.run_id}\n"

    return Response(lines())
