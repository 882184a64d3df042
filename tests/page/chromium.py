"""A real browser, and a page in it that is watched while a test uses it."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Dialog,
    Locator,
    Page,
    expect,
    sync_playwright,
)

EXECUTABLE = shutil.which("chromium") or "/usr/bin/chromium"
OPTIONS = [
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    *(["--no-sandbox"] if os.geteuid() == 0 else []),
]
AXE = Path(__file__).parents[2] / "build/browser/node_modules/axe-core/axe.min.js"
PATIENCE = 20_000
"""Milliseconds that the page has to show something."""

expect.set_options(timeout=PATIENCE)

REPORT_CSP = """
document.addEventListener("securitypolicyviolation", (event) =>
    console.error(`CSP: ${event.violatedDirective} ${event.blockedURI}`));
"""

HIDE = """
(hidden) => {
    Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
    const state = hidden ? "hidden" : "visible";
    Object.defineProperty(document, "visibilityState", {configurable: true, get: () => state});
    document.dispatchEvent(new Event("visibilitychange"));
}
"""


def missing(what: str) -> NoReturn:
    """Skip the test, because something is not installed. In CI that is a failure."""
    says = f"{what} is missing; run: make browser"
    if os.environ.get("CI") == "true":
        pytest.fail(says)
    pytest.skip(says)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser."""
    if not Path(EXECUTABLE).exists():
        missing("Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


@cache
def axe() -> str:
    """Return the source of axe-core."""
    if not AXE.exists():
        missing("axe-core")
    return AXE.read_text()


class Visit:
    """A page of one shop in a browser, and what went wrong in it."""

    def __init__(self, context: BrowserContext, url: str, token: str) -> None:
        self.url = url
        self.token = token
        self.context = context
        self.page: Page = context.new_page()
        self.requests: list[str] = []
        """The method and the address of each request."""
        self.trouble: list[str] = []
        """What must not happen: errors in the console, dialogs, and requests to other hosts."""
        self.expected: list[str] = []
        """Regular expressions of errors in the console that belong to the test."""
        context.set_default_timeout(PATIENCE)
        context.add_init_script(REPORT_CSP)
        context.on("request", lambda request: self._asked(request.method, request.url))
        self._watch(self.page)

    def _watch(self, page: Page) -> None:
        page.on("console", lambda said: self._said(said.type, said.text))
        page.on("pageerror", lambda error: self.trouble.append(f"{error.name}: {error.stack}"))
        page.on("dialog", self._asked_by_dialog)

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.trouble.append(text)

    def _asked_by_dialog(self, dialog: Dialog) -> None:
        self.trouble.append(f"a dialog of the browser: {dialog.message}")
        dialog.dismiss()

    def _asked(self, method: str, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(self.url).netloc:
            self.trouble.append(f"a request to another host: {url}")
        self.requests.append(f"{method} {parts.path}?{parts.query}")

    def check(self) -> None:
        """Raise AssertionError if something went wrong in the page."""
        found = [
            each
            for each in self.trouble
            if not any(re.search(pattern, each) for pattern in self.expected)
        ]
        assert not found, "\n".join(found)

    def another(self) -> Page:
        """Open one more tab."""
        page = self.context.new_page()
        self._watch(page)
        return page

    def enter(self, route: str = "#/") -> "Visit":
        """Open the page with a token, as the line of `keyrun serve` says, then open a screen."""
        self.page.goto(f"{self.url}/#token={self.token}")
        self.shown()
        return self if route == "#/" else self.open(route)

    def open(self, route: str) -> "Visit":
        """Open a screen, and wait until it shows its data."""
        self.page.goto(f"{self.url}/{route}")
        return self.shown(screen_of(route))

    def shown(self, screen: str | None = None) -> "Visit":
        """Wait until a screen shows its data."""
        named = "[data-screen]" if screen is None else f'[data-screen="{screen}"]'
        expect(self.page.locator(f'main#screen{named}[aria-busy="false"]')).to_be_visible()
        return self

    def row(self, run_id: str) -> Locator:
        """Return the row of a run."""
        return self.page.locator(f"[data-run={json.dumps(run_id)}]")

    def key_row(self, key: str) -> Locator:
        """Return the row of a key."""
        return self.page.locator(f"[data-key={json.dumps(key)}]")

    def button(self, name: str) -> Locator:
        """Return the button with this name."""
        return self.page.get_by_role("button", name=name, exact=True)

    def confirm(self, says: str = "") -> None:
        """Confirm the dialog that is open."""
        dialog = self.page.locator("dialog[open]")
        expect(dialog).to_be_visible()
        if says:
            expect(dialog).to_contain_text(says)
        dialog.locator("button[type=submit]").click()
        expect(dialog).to_have_count(0)

    def hide(self, hidden: bool) -> None:
        """Make the tab hidden or visible, as far as the page can see. (Playwright keeps each tab
        visible for the browser.)"""
        self.page.evaluate(HIDE, hidden)

    def connection(self, state: str) -> None:
        """Wait until the mark of the connection says `live`, `polling` or `lost`."""
        expect(self.page.locator(f'[data-connection="{state}"]')).to_be_visible()

    def route(self) -> str:
        """Return the hash of the address."""
        return str(self.page.evaluate("location.hash"))

    def audit(self) -> list[str]:
        """Return the serious violations that axe-core finds, in light and in dark."""
        self.page.evaluate(axe())
        found = self._audit({"resultTypes": ["violations"]})
        self.page.emulate_media(color_scheme="dark")
        colours = {"resultTypes": ["violations"], "runOnly": ["color-contrast"]}
        found += [f"dark: {each}" for each in self._audit(colours)]
        self.page.emulate_media(color_scheme="light")
        return found

    def _audit(self, options: dict[str, Any]) -> list[str]:
        found: Any = self.page.evaluate("(options) => axe.run(document, options)", options)
        return [
            f"{each['id']}: {node['html']} {node['failureSummary']}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        return int(
            self.page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
        )


def screen_of(route: str) -> str:
    """Return the name of the screen of a route: `#/keys/ann` is `key`."""
    path = route.removeprefix("#/").partition("?")[0]
    first, _, rest = path.partition("/")
    if rest and first in ("runs", "keys", "groups"):
        return first.removesuffix("s")
    return first or "overview"


def key_route(key: str) -> str:
    """Return the route of a key."""
    return f"#/keys/{quote(key, safe='')}"
