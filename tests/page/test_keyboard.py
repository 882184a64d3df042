"""The web page can be used with the keyboard, and its address says what it shows."""

import re
from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.page.chromium import Visit
from tests.page.scene import LONG_ID, LONG_KEY, Shop, of

Opened = Callable[..., Visit]


def test_slash_searches_a_run_and_a_key(visit: Opened) -> None:
    seen = visit("#/")
    seen.expected.append("status of 404")  # there is no run with the id of the key
    keyboard = seen.page.keyboard
    keyboard.press("/")
    expect(seen.page.get_by_role("searchbox")).to_be_focused()
    keyboard.type("order-1")
    keyboard.press("Enter")
    seen.shown("run")
    assert seen.route() == "#/runs/order-1"
    keyboard.press("/")
    keyboard.press("Control+a")
    keyboard.type("acme")
    keyboard.press("Enter")
    seen.shown("key")
    assert seen.route() == "#/keys/acme"


def test_escape_leaves_the_search_and_letters_typed_there_are_no_commands(visit: Opened) -> None:
    seen = visit("#/runs")
    keyboard = seen.page.keyboard
    keyboard.press("/")
    keyboard.type("jk?")
    expect(seen.page.get_by_role("searchbox")).to_have_value("jk?")
    expect(seen.page.locator("dialog[open]")).to_have_count(0)
    keyboard.press("Escape")
    expect(seen.page.get_by_role("searchbox")).not_to_be_focused()


def test_j_and_k_move_through_a_list_and_enter_opens(visit: Opened) -> None:
    seen = visit("#/runs?workflow=checkout&state=succeeded")
    rows = seen.page.locator("[data-run]")
    expect(rows.nth(2)).to_be_visible()
    ids = [rows.nth(n).get_attribute("data-run") for n in range(3)]
    seen.page.keyboard.press("j")
    expect(rows.nth(0).locator(":focus")).to_have_count(1)
    seen.page.keyboard.press("j")
    seen.page.keyboard.press("j")
    seen.page.keyboard.press("k")
    expect(rows.nth(1).locator(":focus")).to_have_count(1)
    seen.page.keyboard.press("Enter")
    seen.shown("run")
    assert seen.route() == f"#/runs/{ids[1]}"


def test_a_question_mark_shows_help_and_escape_closes_it(visit: Opened) -> None:
    seen = visit("#/runs")
    seen.page.keyboard.press("?")
    dialog = seen.page.locator("dialog[open]")
    expect(dialog).to_be_visible()
    for key in ("/", "j", "k", "Enter", "?", "Escape"):
        expect(dialog).to_contain_text(key)
    seen.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_the_skip_link_leads_to_the_screen(visit: Opened) -> None:
    seen = visit("#/runs?workflow=checkout")
    seen.page.reload()
    seen.shown("runs")
    seen.page.keyboard.press("Tab")
    seen.page.keyboard.press("Enter")
    expect(seen.page.locator("#screen")).to_be_focused()
    seen.shown("runs")
    expect(seen.row("order-1")).to_be_visible()


def test_the_address_holds_the_filter_and_back_restores_it(visit: Opened) -> None:
    seen = visit("#/runs")
    page = seen.page
    page.get_by_label("workflow", exact=True).fill("refund")
    page.keyboard.press("Enter")
    expect(seen.row("refund-bad-8")).to_be_visible()
    expect(seen.row("order-1")).to_have_count(0)
    assert "workflow=refund" in seen.route()
    page.get_by_label("error", exact=True).fill("ValueError")
    page.keyboard.press("Enter")
    expect(seen.row("refund-declined-1")).to_have_count(0)
    expect(seen.row("refund-bad-8")).to_be_visible()
    assert "error=ValueError" in seen.route()
    seen.row("refund-bad-8").get_by_role("link").first.click()
    seen.shown("run")
    page.go_back()
    seen.shown("runs")
    expect(page.get_by_label("error", exact=True)).to_have_value("ValueError")
    page.go_back()
    expect(seen.row("refund-declined-1")).to_be_visible()
    expect(page.get_by_label("error", exact=True)).to_have_value("")
    expect(page.get_by_label("workflow", exact=True)).to_have_value("refund")


def test_a_link_to_a_filter_shows_the_same_in_another_tab(visit: Opened) -> None:
    seen = visit("#/runs?state=failed&tag=refund&error=shop.CardDeclined")
    expect(seen.row("refund-declined-0")).to_be_visible()
    other = seen.another()
    other.goto(seen.page.url)
    expect(other.locator('[data-run="refund-declined-0"]')).to_be_visible()
    expect(other.locator('[data-run="refund-bad-8"]')).to_have_count(0)
    expect(other.get_by_label("error", exact=True)).to_have_value("shop.CardDeclined")
    expect(other.get_by_label("tag", exact=True)).to_have_value("refund")


def test_a_list_has_pages_and_back_leads_to_the_page_before(visit: Opened, shop: Shop) -> None:
    runs = [of("show", n, f"paged-{n}", f"paged-{n}", tags=["paged"]) for n in range(130)]
    shop.call("POST", "/v1/batches", {"runs": runs})
    seen = visit("#/runs?tag=paged")
    rows = seen.page.locator("[data-run]")
    expect(rows.first).to_be_visible()
    first = rows.first.get_attribute("data-run")
    found = set(rows.evaluate_all("rows => rows.map((row) => row.dataset.run)"))
    assert len(found) < 130
    while (following := seen.page.get_by_text("Next page")).count():
        before = rows.first.get_attribute("data-run")
        following.click()
        expect(seen.row(before or "")).to_have_count(0)
        seen.shown("runs")
        found |= set(rows.evaluate_all("rows => rows.map((row) => row.dataset.run)"))
    assert len(found) == 130
    seen.page.go_back()
    seen.page.get_by_text("First page").click()
    expect(rows.first).to_have_attribute("data-run", first or "")


def test_a_long_id_is_short_on_the_page_and_whole_when_it_is_copied(visit: Opened) -> None:
    seen = visit(f"#/runs?key={quote(LONG_KEY)}")
    seen.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown = seen.row(LONG_ID).locator(f'[title="{LONG_ID}"]').first
    box = shown.bounding_box()
    assert box is not None
    assert box["width"] < 250
    shown.evaluate("(node) => getSelection().selectAllChildren(node)")
    seen.page.keyboard.press("Control+c")
    assert seen.page.evaluate("navigator.clipboard.readText()") == LONG_ID


@pytest.mark.parametrize("route", ["#/nowhere", "#/runs/no-such-run", "#/groups/no-such-group"])
def test_an_address_of_nothing_says_so(visit: Opened, route: str) -> None:
    seen = visit("#/")
    seen.expected.append("status of 404")
    seen.page.goto(f"{seen.url}/{route}")
    expect(seen.page.locator("#screen h1")).to_have_text(re.compile("No such|Not found"))
    seen.shown()
