"""The page of a run shows its story, its data and its relatives."""

import re
from collections.abc import Callable

from playwright.sync_api import expect

from tests.page.chromium import Visit
from tests.page.scene import Shop

Opened = Callable[..., Visit]

CHANGE = """
(values) => {
    for (const [name, value] of Object.entries(values)) {
        const field = document.querySelector(`form.filters [name="${name}"]`);
        field.value = value;
        field.dispatchEvent(new Event("change"));
    }
}
"""
"""Changes filters, and nothing is drawn meanwhile."""


def test_the_timeline_has_each_attempt_with_its_backoff(visit: Opened) -> None:
    seen = visit("#/runs/order-1")
    rows = seen.page.locator("#screen tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("charge")
    expect(rows.nth(1)).to_contain_text("3 (2 failed)")


def test_a_countdown_says_how_long_a_run_waits(visit: Opened) -> None:
    seen = visit("#/runs/is-asleep")
    left = seen.page.locator("[data-explain] time")
    expect(left).to_have_text(re.compile(r"^in \d+ min( \d+ s)?$"))
    before = left.inner_text()
    expect(left).not_to_have_text(before)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*Z", left.get_attribute("title") or "")


def test_the_data_of_a_run_follow_from_its_other_tabs(visit: Opened) -> None:
    seen = visit("#/runs/order-1")
    seen.page.get_by_role("link", name="Data").click()
    screen = seen.page.locator("#screen")
    expect(screen).to_contain_text('"customer": "ann"')
    expect(screen).to_contain_text('"receipt": "receipt for ann"')


def test_the_journal_is_filtered_by_event_and_text(visit: Opened) -> None:
    seen = visit("#/runs/order-1?tab=journal")
    rows = seen.page.locator("#screen tbody tr")
    expect(rows.filter(has_text="ship")).to_have_count(1)
    seen.page.get_by_label("Event").select_option("attempt_failed")
    expect(rows).to_have_count(2)
    assert "event=attempt_failed" in seen.route()
    seen.page.get_by_label("Event").select_option("")
    seen.page.get_by_label("Text").fill("ship")
    seen.page.keyboard.press("Enter")
    expect(rows).to_have_count(1)


def test_a_filter_that_changes_before_the_last_change_is_drawn_keeps_it(visit: Opened) -> None:
    seen = visit("#/runs/order-1?tab=journal&event=attempt_failed")
    rows = seen.page.locator("#screen tbody tr")
    expect(rows).to_have_count(2)
    seen.page.evaluate(CHANGE, {"event": "", "text": "ship"})
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("ship")


def test_parents_and_children_lead_to_each_other(visit: Opened, shop: Shop) -> None:
    seen = visit("#/runs/is-a-parent?tab=family")
    child = seen.page.locator("[data-run]")
    expect(child).to_have_count(1)
    child.get_by_role("link").first.click()
    expect(seen.page.locator("[data-explain]")).to_contain_text("gate 'manager'")
    seen.page.get_by_role("link", name="Family").click()
    expect(seen.row("is-a-parent")).to_be_visible()


def test_a_graph_is_drawn_with_the_states_of_its_nodes(visit: Opened) -> None:
    seen = visit("#/runs/parcel-1?tab=graph")
    drawn = seen.page.locator("#screen svg").filter(has_text="charge")
    for node, state in {"validate": "done", "charge": "failed", "ship": "running"}.items():
        box = drawn.locator("g").filter(has_text=node).last
        expect(box).to_contain_text(state)
    expect(drawn).to_contain_text("skipped")


def test_a_failure_is_shown_with_its_traceback(visit: Opened) -> None:
    seen = visit("#/runs/refund-busy-5")
    screen = seen.page.locator("#screen")
    expect(screen).to_contain_text("ConnectionError: the bank does not answer")
    seen.page.get_by_text("Traceback").first.click()
    expect(screen).to_contain_text("raise ConnectionError(text)")


def test_the_state_and_the_entities_of_a_key_are_shown(visit: Opened, shop: Shop) -> None:
    shop.submit("call", "remember", key="ann")
    seen = visit("#/keys/ann")
    screen = seen.page.locator("#screen")
    expect(screen).to_contain_text('"balance": 54')
    expect(screen).to_contain_text("Account")
    expect(screen).to_contain_text('"visits": 1')
