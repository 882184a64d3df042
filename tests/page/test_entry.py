"""The ways into the page."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from playwright.sync_api import expect

from tests.keyrun.serving import KEYRUN, PATIENCE, free_port, patience
from tests.page.chromium import Visit
from tests.page.conftest import Visitor
from tests.page.many import fill
from tests.page.scene import SOURCE, Shop, serve

Opened = Callable[..., Visit]


def test_a_token_in_the_address_becomes_a_cookie_and_leaves_the_address(
    visit: Opened, shop: Shop
) -> None:
    seen = visit()
    assert shop.tokens["admin"] not in seen.page.url
    (cookie,) = seen.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert shop.tokens["admin"] not in str(cookie["value"])
    assert seen.page.evaluate("document.cookie") == ""
    assert seen.page.evaluate("JSON.stringify([localStorage, sessionStorage])") == "[{},{}]"
    expect(seen.page.locator("#who")).to_contain_text("ada")


def test_a_page_without_a_token_asks_for_one(visit: Opened, shop: Shop) -> None:
    seen = visit()
    seen.expected.append("status of 401")
    seen.context.clear_cookies()
    seen.page.goto(f"{seen.url}/#/keys/acme")
    seen.page.reload()
    field = seen.page.get_by_label("Token")
    field.fill("wrong-wrong-wrong-wrong")
    seen.page.keyboard.press("Enter")
    expect(seen.page.locator("#toasts")).to_contain_text("token")
    field.fill(shop.tokens["operate"])
    seen.page.keyboard.press("Enter")
    seen.shown("key")
    assert seen.route() == "#/keys/acme"
    expect(seen.page.locator("#who")).to_contain_text("otto")


def test_the_page_is_answered_with_a_strict_policy(visitor: Visitor, shop: Shop) -> None:
    seen = visitor(shop)
    answer = seen.page.goto(seen.url + "/")
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    seen.expected.append("CSP: |Content Security Policy")
    seen.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "document.title = 'injected'";
            document.head.append(script);
        }"""
    )
    assert seen.page.title() != "injected"
    assert any(each.startswith("CSP: ") for each in seen.trouble)


def test_a_store_that_no_process_has_open_is_shown_and_not_changed(
    browse: Visitor, tmp_path: Path
) -> None:
    fill(tmp_path, 30)
    command = [str(KEYRUN), "open", "state"]
    with (
        subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert process.stdout is not None
        found = re.search(r"(http://\S+)/#token=(\S+)", process.stdout.readline())
        assert found is not None
        seen = browse(found[1], found[2]).enter("#/runs")
        row = seen.page.locator("[data-run]").first
        expect(row).to_contain_text("succeeded")
        row.get_by_role("link").first.click()
        seen.shown("run")
        button = seen.button("Forget")
        expect(button).to_be_disabled()
        assert "read" in (button.get_attribute("title") or "")
        with serve(tmp_path) as shop:
            shop.submit("listen", key="k", run_id="live")
            for _ in patience():
                seen.page.reload()  # the page asks at its start what the caller may do
                seen.shown("run")
                if "read-only" not in seen.page.locator("#who").inner_text():
                    break
            seen.open("#/runs/live")
            seen.button("Pause").click()
            expect(seen.page.locator("[data-explain]")).to_contain_text("is paused by")
            seen.expected.append("status of")  # while the server closes
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        seen.expected.append("ERR_")


HOST = """
from contextlib import asynccontextmanager

import keyrun.asyncio
import keyrun.web
from fastapi import FastAPI
from shop import app as shop


async def user_of(request):
    return "ann", "operate"


@asynccontextmanager
async def lifespan(app):
    async with keyrun.asyncio.open_runtime("state", app=shop) as rt:
        api = keyrun.web.app(rt, authorize=user_of, allowed_hosts=["127.0.0.1"])
        app.mount("/office/runs", api)
        yield


app = FastAPI(lifespan=lifespan)
"""


def test_the_page_works_below_a_path_of_another_application(
    browse: Visitor, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SOURCE.read_text())
    (tmp_path / "office.py").write_text(HOST)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "office:app", "--port", str(port)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        try:
            seen = browse(f"http://127.0.0.1:{port}/office/runs")
            for _ in patience():
                with suppress(OSError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
            seen.open("#/start?workflow=listen")
            expect(seen.page.locator("#who")).to_contain_text("ann")
            seen.page.get_by_label("Key", exact=True).fill("k")
            seen.button("Start the run").click()
            seen.shown("run")
            expect(seen.page.locator("[data-explain]")).to_contain_text("waits for the signal")
            seen.open("#/runs")
            expect(seen.page.locator("[data-run]")).to_have_count(1)
            assert all(" /office/runs/" in each for each in seen.requests), seen.requests
        finally:
            process.kill()
