"""Fills a store with the runs that the tests of the web page look at, and serves it."""

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs

import keyrun.sync
from keyrun import Context, Workflow, step, workflow
from tests.keyrun.serving import PATIENCE, Serving, serving
from tests.page import shop
from tests.page.shop import SLOW
from tests.storage.test_verify import damage

SOURCE = Path(shop.__file__)
NAMES = {"read": "rita", "submit": "sue", "operate": "otto", "admin": "ada"}
"""The names of the tokens, by their roles."""
LONG_ID = "order-" + "0123456789" * 12
LONG_KEY = "ключ" * 31 + "-long"
MARKUP = "<img src=x onerror=alert(1)>"
REVERSED = "\u202egnp.exe\u202c \u200f\u05e9\u05dc\u05d5\u05dd"
CONTROLS = "bell\x07 null\x00 escape\x1b[31m line\nend"
HOSTILE = {"markup": MARKUP, "reversed": REVERSED, "controls": CONTROLS}
"""Texts that a page could take for something else, by the run whose key, input and error has it."""


@step
async def bill(month: str) -> str:
    return f"billed {month}"


@workflow(name="monthly")
async def monthly_1(ctx: Context, month: str) -> str:
    """The version that is not registered any more when the shop is served."""
    await ctx.sleep(SLOW)
    return await ctx.step(bill, month)


@attrs.frozen
class Shop:
    """A shop that is served, with its scene."""

    server: Serving
    tokens: dict[str, str]

    @property
    def url(self) -> str:
        """Return the address of the page, without a token."""
        return self.server.url

    def call(self, method: str, path: str, data: Any = None) -> Any:
        """Send a request of an admin, and return the JSON of the answer."""
        return self.server.call(method, path, data)

    def submit(self, workflow: str, value: Any = None, **more: Any) -> None:
        """Start a run."""
        self.call("POST", "/v1/runs", {"workflow": workflow, "input": value, **more})

    def status(self, run_id: str) -> dict[str, Any]:
        """Return the status of a run."""
        found: dict[str, Any] = self.call("GET", f"/v1/runs/{quote(run_id, safe='')}")
        return found

    def until(self, run_id: str, state: str) -> dict[str, Any]:
        """Wait until a run has a state, and return its status."""
        end = time.monotonic() + PATIENCE
        while (found := self.status(run_id))["state"] != state:
            assert time.monotonic() < end, found
            time.sleep(0.01)
        return found

    def until_explained(self, key: str, cause: str) -> str:
        """Wait until a key does not move because of a cause, and return the sentence."""
        end = time.monotonic() + PATIENCE
        path = f"/v1/keys/{quote(key, safe='')}/explain"
        while (found := self.call("GET", path))["cause"] != cause:
            assert time.monotonic() < end, found
            time.sleep(0.01)
        return str(found["sentence"])


def prepare(folder: Path) -> None:
    """Make a store with runs of code that the shop does not have any more, and with damage."""
    store = folder / "state"
    old: list[Workflow[Any, Any]] = [monthly_1, shop.call]
    with keyrun.sync.open_runtime(store, workflows=old, drain_timeout=0) as rt:
        rt.submit(shop.call, "remember", key="damaged", run_id="before-damage").result()
        for month in ("june", "july"):
            rt.submit(monthly_1, month, key="acme", run_id=f"invoice-{month}")
        rt.submit(monthly_1, "may", key="globex", run_id="invoice-may", delay=1)
    damage(store, "state", b"default\0\7damaged")


def of(workflow: str, value: Any, key: str, run_id: str, **more: Any) -> dict[str, Any]:
    """Return a run of a batch."""
    return {"workflow": workflow, "input": value, "key": key, "run_id": run_id, **more}


def order(customer: str, *skus: str, **more: Any) -> dict[str, Any]:
    """Return the input of a checkout."""
    items = [{"sku": sku, "quantity": number} for number, sku in enumerate(skus, 1)]
    return {"customer": customer, "items": items, "amount": 12.5 * len(items), **more}


def failing(kind: str, text: str, number: int) -> dict[str, Any]:
    """Return a run that becomes a dead letter."""
    run_id = f"refund-{kind}-{number}"
    return of("refund", {"kind": kind, "text": text}, f"refunds-{number}", run_id, tags=["refund"])


WAITING = {
    "running": of("call", "busy", "running", "is-running"),
    "backoff": of("call", "flaky", "backoff", "is-in-backoff"),
    "timer": of("nap", SLOW, "timer", "is-asleep"),
    "signal": of("listen", None, "signal", "is-listening"),
    "approval": of("ask", "a discount", "approval", "is-asking"),
    "child": of("parent", "child-of-parent", "child", "is-a-parent"),
    "rate_limit": of("call", "limited", "rate-limit", "is-limited"),
    "circuit": of("call", "broken", "circuit", "is-behind-a-circuit"),
    "resources": of("call", "large", "resources", "is-large"),
    "max_concurrent": of("call", "narrow", "max-concurrent", "is-one-too-many"),
    "max_waiting": of("crowded", None, "max-waiting", "is-crowded-3"),
    "instances": of("single", None, "instances", "is-second"),
}
"""For each cause, the run at the head of a key that does not move because of it."""
BEFORE = [
    of("call", "limited", "before-1", "first-limited"),
    of("call", "broken", "before-2", "first-broken"),
    of("call", "large", "before-3", "first-large"),
    of("call", "narrow", "before-4", "first-narrow"),
    of("crowded", None, "before-5", "is-crowded-1"),
    of("crowded", None, "before-6", "is-crowded-2"),
    of("single", None, "before-7", "is-first"),
]
"""What has to be there first."""


def fill(shop: Shop) -> None:
    """Start the runs of the scene, and wait until they are where they should be."""

    def batch(*runs: dict[str, Any]) -> None:
        for each in shop.call("POST", "/v1/batches", {"runs": runs})["result"]:
            assert "run_id" in each, each

    shop.call("POST", "/v1/keys/paused/pause")
    batch(
        *BEFORE,
        *[
            of("checkout", order(name, "tea", "cup"), name, f"order-{number}", tags=["web"])
            for number, name in enumerate(("ann", "bob", "carol", "dora", "emil", "ann"), 1)
        ],
        *[failing("declined", f"card {n} was declined", n) for n in range(5)],
        *[failing("busy", "the bank does not answer", n) for n in range(5, 8)],
        failing("bad", "the amount is negative", 8),
        *[
            of("refund", {"kind": "bad", "text": text}, text, f"hostile-{name}", tags=[name])
            for name, text in HOSTILE.items()
        ],
        *[
            of("show", {text: [text, None]}, text, f"shown-{name}", headers={"note": text})
            for name, text in HOSTILE.items()
        ],
        of("show", {"id": LONG_ID}, LONG_KEY, LONG_ID),
        of("payment", 12.5, "payments", "payment-1"),
        of("fulfilment", {"order": 7}, "parcels", "parcel-1"),
        of("count", 250, "counting", "counted"),
        of("call", "remember", "damaged", "needs-state"),
        of("nap", SLOW, "paused", "held-by-key"),
        of("nap", SLOW, "paused-run", "held"),
        of("nap", 0.01, "delayed", "comes-later", delay=SLOW),
    )
    for number, amount in enumerate((30, 12), 1):
        shop.call("POST", "/v1/entities/Account/ann/deposit", {"args": [amount * number]})
    members = [
        {"workflow": "show", "input": n, "key": f"page-{n}", "member_id": f"p{n}"} for n in range(5)
    ]
    asleep = {"workflow": "nap", "input": SLOW, "key": "page-9", "member_id": "p9"}
    failed = failing("bad", "page 8 is empty", 9)
    failed = {name: failed[name] for name in ("workflow", "input", "key")}
    shop.call("POST", "/v1/groups/book-7", {"members": [*members, failed, asleep]})
    shop.until("first-broken", "failed")
    shop.call("POST", "/v1/runs/held/pause")
    for run in BEFORE[:1]:
        shop.until(run["run_id"], "running")
    batch(*WAITING.values(), of("nap", 0.01, "running", "is-queued"))
    for cause, run in WAITING.items():
        shop.until_explained(run["key"], cause)
    for run_id in ("order-6", "shown-controls", "counted"):
        shop.until(run_id, "succeeded")
    for run_id in ("refund-busy-7", "payment-1", "hostile-controls"):
        shop.until(run_id, "failed")
    shop.until_explained("acme", "quarantined")
    shop.until_explained("damaged", "quarantined")
    shop.until_explained("globex", "quarantined")


def tokens_in(file: Path) -> dict[str, str]:
    """Return the token of each role. Write them if there is no file, that of the admin last."""
    if not file.exists():
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as out:
            for role, name in NAMES.items():
                out.write(f"{secrets.token_urlsafe(32)} {role} {name}\n")
    lines = [line.split() for line in file.read_text().splitlines()]
    return {role: token for token, role, _ in lines}


@contextmanager
def serve(folder: Path, *words: str, port: int = 0, **given: Any) -> Iterator[Shop]:
    """Serve the shop on a store in a folder, without a scene."""
    with keyrun.sync.open_runtime(folder / "state"):
        pass  # the file of tokens needs the directory of a store
    tokens = tokens_in(folder / "state/tokens")
    http = ("--http", f"127.0.0.1:{port}")
    with serving(folder, *http, *words, source=SOURCE.read_text(), **given) as it:
        it.announced()
        it.until("/readyz", (200, "ok"))
        yield Shop(it, tokens)


@contextmanager
def served_scene(folder: Path) -> Iterator[Shop]:
    """Serve the shop with all runs of the scene."""
    prepare(folder)
    with serve(folder) as found:
        fill(found)
        yield found


if __name__ == "__main__":
    import tempfile

    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place, served_scene(Path(place)) as made:
        print(f"{time.monotonic() - begun:.1f} s", made.url, json.dumps(made.tokens))
        made.server.process.wait()
