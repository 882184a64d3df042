"""The page stays up to date, and says so when it cannot."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.keyrun.serving import free_port
from tests.page.chromium import Visit
from tests.page.conftest import Visitor
from tests.page.scene import Shop, serve

Opened = Callable[..., Visit]


def event_of(seen: Visit, run_id: str) -> Locator:
    """Return the newest event of a run."""
    return seen.page.locator(f'tbody a[href="#/runs/{run_id}"]').first


def test_an_open_run_shows_what_happens_to_it(visit: Opened, shop: Shop) -> None:
    shop.submit("listen", key="watched", run_id="watched")
    shop.until_explained("watched", "signal")
    seen = visit("#/runs/watched")
    expect(seen.page.locator("[data-explain]")).to_contain_text("waits for the signal 'paid'")
    shop.call("POST", "/v1/runs/watched/signals/paid", {"payload": 1})
    expect(seen.page.locator("[data-explain]")).to_contain_text("succeeded")


def test_a_hidden_tab_sends_nothing(visit: Opened) -> None:
    seen = visit("#/")
    for route in ("#/", "#/runs/is-asleep", "#/events"):
        with seen.page.expect_request("**/v1/**"):
            seen.open(route)
        seen.hide(True)
        seen.page.wait_for_timeout(300)  # what was under way ends
        before = len(seen.requests)
        seen.page.wait_for_timeout(2000)
        assert seen.requests[before:] == []
        with seen.page.expect_request("**/v1/**"):
            seen.hide(False)


def test_a_screen_asks_about_once_a_second(visit: Opened) -> None:
    seen = visit("#/runs/is-asleep")
    before = len(seen.requests)
    seen.page.wait_for_timeout(3000)
    asked = seen.requests[before:]
    assert 2 <= len([each for each in asked if "/v1/runs/is-asleep?" in each]) <= 4, asked
    assert len(asked) <= 16, asked


def test_a_killed_server_is_noticed_and_the_page_recovers(visitor: Visitor, tmp_path: Path) -> None:
    port = free_port()
    with serve(tmp_path, port=port) as shop:
        shop.submit("listen", key="k", run_id="survivor")
        shop.until_explained("k", "signal")
        seen = visitor(shop, "#/runs/survivor")
        seen.expected += ["ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET"]
        seen.expected += ["status of 503"]
        seen.connection("live")
        shop.server.send(signal.SIGKILL)
        shop.server.ended()
    seen.connection("lost")
    expect(seen.page.locator("[data-explain]")).to_contain_text("waits for the signal 'paid'")
    with serve(tmp_path, port=port) as shop:
        seen.connection("live")
        shop.call("POST", "/v1/runs/survivor/signals/paid", {"payload": 1})
        expect(seen.page.locator("[data-explain]")).to_contain_text("succeeded")


def test_an_action_on_a_killed_server_says_that_it_failed(visitor: Visitor, tmp_path: Path) -> None:
    with serve(tmp_path) as shop:
        shop.submit("listen", key="k", run_id="r")
        seen = visitor(shop, "#/runs/r")
        seen.expected += ["ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET"]
        shop.server.send(signal.SIGKILL)
        shop.server.ended()
    seen.button("Pause").click()
    expect(seen.page.locator("#toasts")).to_contain_text("does not answer")


def test_events_are_shown_as_they_happen(visit: Opened, shop: Shop) -> None:
    seen = visit("#/events")
    seen.connection("live")
    shop.submit("show", 1, key="live-event", run_id="live-event")
    expect(event_of(seen, "live-event")).to_be_visible()


def test_events_are_polled_where_streams_are_cut(visit: Opened, shop: Shop) -> None:
    seen = visit("#/")
    seen.expected.append("ERR_FAILED")
    seen.context.route("**/v1/events?**", lambda route: route.abort())
    seen.open("#/events")
    seen.connection("polling")
    shop.submit("show", 1, key="polled-event", run_id="polled-event")
    expect(event_of(seen, "polled-event")).to_be_visible()


@pytest.mark.parametrize("route", ["#/", "#/runs/is-asleep", "#/policies"])
def test_a_session_that_ends_asks_for_a_token(visit: Opened, shop: Shop, route: str) -> None:
    seen = visit(route)
    seen.expected.append("status of 401")
    seen.context.clear_cookies()
    field = seen.page.get_by_label("Token")
    expect(field).to_be_visible()
    field.fill(shop.tokens["read"])
    seen.page.keyboard.press("Enter")
    seen.shown()
    assert seen.route() == route
