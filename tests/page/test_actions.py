"""What a person does on the web page happens in the runtime, and the history says who did it."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.page.chromium import Visit
from tests.page.scene import Shop, of, order
from tests.page.shop import SLOW

Opened = Callable[..., Visit]


def done(seen: Visit, says: str | re.Pattern[str]) -> None:
    """Wait until the page says that something was done."""
    expect(seen.page.locator("#toasts")).to_contain_text(says)


def who(shop: Shop, run_id: str) -> list[tuple[str, str]]:
    """Return the writes in the history of a run after its submit, and who made them."""
    found = shop.call("GET", f"/v1/runs/{run_id}/history")["events"]
    writes = [each for each in found if each["event"] == "operation"]
    return [(each["detail"].split()[0], each["who"]) for each in writes[1:]]


def test_a_dead_letter_is_redriven(visit: Opened, shop: Shop) -> None:
    seen = visit("#/dead-letters")
    found = seen.page.get_by_role("row").filter(has_text="payment")
    found.get_by_role("link", name="ConnectionError").click()
    seen.shown("runs")
    assert "error=" in seen.route()
    seen.row("payment-1").get_by_role("link", name="payment-1").click()
    seen.shown("run")
    (shop.server.store.parent / "repaired").touch()
    seen.button("Redrive").click()
    shop.until("payment-1", "succeeded")
    expect(seen.page.locator('[data-explain="ended"]')).to_contain_text("succeeded")
    assert who(shop, "payment-1") == [("redrive", "ada")]
    seen.open("#/runs/payment-1?tab=journal")
    expect(seen.page.locator("#screen")).to_contain_text("ada")


def test_dead_letters_are_grouped_by_error(visit: Opened) -> None:
    seen = visit("#/dead-letters")
    screen = seen.page.locator("#screen")
    for error in ("CardDeclined", "ConnectionError", "ValueError"):
        expect(screen).to_contain_text(error)


def test_a_key_is_released(visit: Opened, shop: Shop) -> None:
    seen = visit("#/quarantine")
    expect(seen.key_row("globex").first).to_be_visible()
    seen.open("#/keys/globex")
    seen.button("Release").click()
    found = shop.until("invoice-may", "succeeded")
    assert (found["version"], found["result"]) == (2, "billed may")
    expect(seen.page.locator('[data-explain="idle"]')).to_be_visible()


def test_all_runs_of_a_filter_are_cancelled_after_a_preview(visit: Opened, shop: Shop) -> None:
    runs = [of("nap", SLOW, f"bulk-{n}", f"bulk-{n}", tags=["bulk"]) for n in range(120)]
    shop.call("POST", "/v1/batches", {"runs": runs})
    seen = visit("#/runs?tag=bulk")
    expect(seen.page.locator("[data-run]").first).to_be_visible()
    seen.button("Cancel all runs that match").click()
    seen.confirm("120")
    done(seen, "120")
    for number in (0, 60, 119):
        shop.until(f"bulk-{number}", "cancelled")
    assert who(shop, "bulk-119") == [("cancel", "ada")]
    assert shop.status("is-asleep")["state"] == "waiting"


def test_a_bulk_that_is_not_confirmed_changes_nothing(visit: Opened, shop: Shop) -> None:
    shop.submit("nap", SLOW, key="spared", run_id="spared", tags=["spared"])
    seen = visit("#/runs?tag=spared")
    seen.button("Cancel all runs that match").click()
    expect(seen.page.locator("dialog[open]")).to_contain_text("1")
    seen.page.keyboard.press("Escape")
    expect(seen.page.locator("dialog[open]")).to_have_count(0)
    assert shop.status("spared")["state"] == "waiting"
    assert not [each for each in seen.requests if "cancel" in each and "preview=false" in each]


@pytest.mark.parametrize(("name", "state"), [("Approve", "succeeded"), ("Reject", "failed")])
def test_an_approval_is_decided_in_the_inbox(
    visit: Opened, shop: Shop, name: str, state: str
) -> None:
    run_id = f"to-{name.lower()}"
    shop.submit("ask", "a refund", key=run_id, run_id=run_id)
    shop.until_explained(run_id, "approval")
    seen = visit("#/approvals")
    seen.button(f"{name} manager of {run_id}").click()
    dialog = seen.page.locator("dialog[open]")
    dialog.get_by_label("Comment for the workflow").fill("as agreed")
    seen.confirm()
    found = shop.until(run_id, state)
    if state == "succeeded":
        assert found["result"] == "a refund: as agreed"
    expect(seen.row(run_id)).to_have_count(0)
    assert who(shop, run_id) == [(name.lower(), "ada")]


def test_a_run_is_started_by_the_form_of_its_input(visit: Opened, shop: Shop) -> None:
    seen = visit("#/start?workflow=checkout")
    page = seen.page
    page.get_by_label("Key", exact=True).fill("started-by-form")
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Run id").fill("started-by-form")
    page.get_by_label("customer").fill("zoe")
    page.get_by_label("amount").fill("12.5")
    page.get_by_label("express").select_option("true")
    page.get_by_label(re.compile("^payment")).select_option("invoice")
    seen.button("Add to items").click()
    page.get_by_label("sku").fill("tea")
    page.get_by_label("quantity").fill("2")
    seen.button("Start the run").click()
    seen.shown("run")
    assert seen.route().startswith("#/runs/started-by-form")
    found = shop.until("started-by-form", "succeeded")
    assert found["result"] == {"receipt": "receipt for zoe", "carrier": "express", "items": 1}
    given = shop.call("GET", "/v1/runs/started-by-form/input")["result"]
    assert given == {
        **order("zoe", "tea", express=True, payment="invoice", note=None),
        "items": [{"sku": "tea", "quantity": 2}],
    }


def test_a_form_with_an_error_says_what_is_wrong_and_keeps_what_was_typed(
    visit: Opened, shop: Shop
) -> None:
    seen = visit("#/start?workflow=checkout")
    page = seen.page
    seen.expected.append("the server responded with a status of 422")
    page.get_by_label("Key", exact=True).fill("k")
    page.get_by_label("customer").fill("zoe")
    page.get_by_label("amount").fill("twelve")
    seen.button("Start the run").click()
    alert = page.locator("#screen").get_by_role("alert")
    expect(alert).to_have_text("amount: requires a number, got twelve")
    page.get_by_label("amount").fill("12")
    page.get_by_label("Key", exact=True).fill("k" * 256)
    seen.button("Start the run").click()
    expect(alert).to_contain_text("255")
    assert page.get_by_label("customer").input_value() == "zoe"


def test_a_run_of_a_graph_is_started_with_json(visit: Opened, shop: Shop) -> None:
    seen = visit("#/start?workflow=show")
    page = seen.page
    page.get_by_label("Key", exact=True).fill("by-json")
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Run id").fill("by-json")
    value = {"text": "<b>", "numbers": [1, 2.5, None]}
    page.get_by_label("Input").fill(json.dumps(value))
    seen.button("Start the run").click()
    seen.shown("run")
    assert shop.until("by-json", "succeeded")["result"] == value


def test_a_run_a_key_and_the_runtime_are_paused_and_resumed(visit: Opened, shop: Shop) -> None:
    shop.submit("nap", SLOW, key="to-pause", run_id="to-pause")
    seen = visit("#/runs/to-pause")
    seen.button("Pause").click()
    expect(seen.page.locator("[data-explain]")).to_contain_text("is paused by ada")
    seen.button("Resume").click()
    expect(seen.page.locator("[data-explain]")).to_contain_text("waits for a timer")
    assert who(shop, "to-pause") == [("pause", "ada"), ("resume", "ada")]
    seen.open("#/keys/to-pause")
    seen.button("Pause key").click()
    expect(seen.page.locator("[data-explain]")).to_contain_text("its key is paused by ada")
    seen.button("Resume key").click()
    expect(seen.page.locator("[data-explain]")).to_contain_text("waits for a timer")
    seen.open("#/")
    seen.button("Pause all runs").click()
    seen.confirm()
    try:
        seen.open("#/runs/to-pause")
        expect(seen.page.locator("[data-explain]")).to_contain_text("the runtime is paused by")
        seen.open("#/")
        seen.button("Resume all runs").click()
        seen.open("#/runs/to-pause")
        expect(seen.page.locator("[data-explain]")).not_to_contain_text("is paused")
    finally:
        shop.call("POST", "/v1/resume")


def test_a_run_is_cancelled_and_forgotten(visit: Opened, shop: Shop) -> None:
    shop.submit("nap", SLOW, key="to-cancel", run_id="to-cancel")
    seen = visit("#/runs/to-cancel")
    seen.button("Cancel run").click()
    seen.confirm("to-cancel")
    expect(seen.page.locator('[data-explain="ended"]')).to_contain_text("cancelled")
    assert who(shop, "to-cancel") == [("cancel", "ada")]
    seen.expected.append("status of 404")
    seen.button("Forget").click()
    seen.confirm("to-cancel")
    expect(seen.page.locator("#screen")).to_contain_text("Not found")
    assert shop.call("GET", "/v1/runs?key=to-cancel")["runs"] == []


def test_a_signal_is_sent_from_the_page(visit: Opened, shop: Shop) -> None:
    shop.submit("listen", key="to-signal", run_id="to-signal")
    shop.until_explained("to-signal", "signal")
    seen = visit("#/runs/to-signal")
    seen.button("Signal").click()
    dialog = seen.page.locator("dialog[open]")
    assert dialog.get_by_label("Name").input_value() == "paid"
    dialog.get_by_label("Payload (JSON)").fill('{"amount": 3}')
    seen.confirm()
    assert shop.until("to-signal", "succeeded")["result"] == {"amount": 3}


def test_a_schedule_is_paused_resumed_and_deleted(visit: Opened, shop: Shop) -> None:
    given = {"workflow": "show", "key": "k", "when": {"every": SLOW}}
    shop.call("PUT", "/v1/schedules/to-stop", given)

    def found() -> dict[str, Any]:
        all_of_them = shop.call("GET", "/v1/schedules")["schedules"]
        return {each["schedule_id"]: each for each in all_of_them}

    seen = visit("#/schedules")
    row = seen.page.locator('[data-schedule="to-stop"]')
    seen.button("Pause to-stop").click()
    expect(seen.button("Resume to-stop")).to_be_visible()
    assert found()["to-stop"]["paused"]
    seen.button("Resume to-stop").click()
    expect(seen.button("Pause to-stop")).to_be_visible()
    assert not found()["to-stop"]["paused"]
    seen.button("Delete to-stop").click()
    seen.confirm("to-stop does not fire")
    expect(row).to_have_count(0)
    assert set(found()) == {"nightly", "pulse"}


def test_a_group_is_cancelled(visit: Opened, shop: Shop) -> None:
    member = {"workflow": "nap", "input": SLOW, "key": "g", "member_id": "one"}
    shop.call("POST", "/v1/groups/to-cancel", {"members": [member]})
    seen = visit("#/groups/to-cancel")
    seen.button("Cancel group").click()
    seen.confirm("not ended are cancelled: 1.")
    shop.until("to-cancel-one", "cancelled")


READERS = {
    "#/runs/is-asleep": ["Cancel run", "Pause", "Signal"],
    "#/runs/refund-busy-5": ["Redrive", "Forget"],
    "#/runs?tag=refund": ["Cancel all runs that match", "Forget all runs that match"],
    "#/dead-letters": ["Redrive all runs that match"],
    "#/quarantine": ["Release"],
    "#/keys/acme": ["Release", "Pause key"],
    "#/approvals": ["Approve manager of is-asking", "Reject manager of is-asking"],
    "#/schedules": ["Pause nightly", "Delete nightly"],
    "#/start?workflow=checkout": ["Start the run"],
    "#/groups/book-7": ["Cancel group"],
    "#/": ["Pause all runs"],
}


@pytest.mark.parametrize("route", READERS)
def test_a_reader_sees_what_is_not_allowed_and_why(visit: Opened, route: str) -> None:
    seen = visit(route, role="read")
    for name in READERS[route]:
        button = seen.page.locator("#screen").get_by_role("button", name=name, exact=True).first
        expect(button).to_be_disabled()
        title = button.get_attribute("title") or ""
        assert re.search(r"requires the role (submit|operate|admin)\. Your role is read\.", title)
        described = button.get_attribute("aria-describedby") or ""
        assert seen.page.locator(f"#{described}").text_content() == title
