"""A browser and a shop for each process of the tests, and a fresh context for each test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.page.chromium import Visit, chromium
from tests.page.scene import Shop, served_scene

Visitor = Callable[..., Visit]


# While Playwright runs, asyncio takes its loop for the running one. So it ends with this folder.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Shop]:
    """The shop with its scene. A test leaves the runs of the scene as they are."""
    with served_scene(tmp_path_factory.mktemp("shop")) as found:
        yield found


@pytest.fixture
def browse(browser: Browser) -> Iterator[Visitor]:
    """Opens a tab for the page at an address, and checks at the end what happened in it."""
    with ExitStack() as stack:
        visits: list[Visit] = []

        def opened(url: str, token: str = "", **options: Any) -> Visit:
            context = browser.new_context(reduced_motion="reduce", **options)
            stack.callback(context.close)
            visits.append(Visit(context, url, token))
            return visits[-1]

        yield opened
        for each in visits:
            each.check()


@pytest.fixture
def visitor(browse: Visitor) -> Visitor:
    """Opens a screen of a shop with a token of a role."""

    def visit(shop: Shop, route: str = "#/", *, role: str = "admin", **options: Any) -> Visit:
        return browse(shop.url, shop.tokens[role], **options).enter(route)

    return visit


@pytest.fixture
def visit(visitor: Visitor, shop: Shop) -> Callable[..., Visit]:
    """Opens pages of the shop with its scene."""

    def opened(route: str = "#/", **options: Any) -> Visit:
        return visitor(shop, route, **options)

    return opened
