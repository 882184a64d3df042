"""A key and a run say in one sentence why they do not move."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.page.chromium import Visit, key_route
from tests.page.scene import WAITING, Shop, of
from tests.page.shop import SLOTS, SLOW

SAYS = {
    "running": "Run is-running is running busy (attempt 1).",
    "backoff": "Run is-in-backoff waits until * before the next attempt of flaky.",
    "timer": "Run is-asleep waits for a timer until *.",
    "signal": "Run is-listening waits for the signal 'paid' until *.",
    "approval": "Run is-asking waits for a decision at the gate 'manager'.",
    "child": "Run is-a-parent waits for its child * under key child-of-parent, which waits for a "
    "decision at the gate 'manager'.",
    "rate_limit": "Run is-limited has not started limited, which waits for its rate limit.",
    "circuit": "Run is-behind-a-circuit has not started broken, which waits for its circuit "
    "breaker, which is open.",
    "resources": "Run is-large has not started large, which waits for resources that other steps "
    "have reserved.",
    "max_concurrent": "Run is-one-too-many has not started narrow, which waits until one of the "
    "running calls has ended, because of its max_concurrent.",
    "max_waiting": "Run is-crowded-3 has not started produce, which waits, because as many calls "
    "of a later node wait as its max_waiting allows.",
    "instances": "Run is-second waits until another run of its workflow has ended, because of its "
    "instances.",
}
KEYS = {
    **{WAITING[cause]["key"]: says for cause, says in SAYS.items()},
    "acme": "Run invoice-june is quarantined (unregistered): the workflow 'monthly' version 1 is "
    "not registered*",
    "damaged": "Run needs-state is quarantined (key): the key 'damaged' is quarantined:*",
    "paused": "Run held-by-key is paused, because its key is paused by ada since *.",
    "paused-run": "Run held is paused by ada since * until it is resumed, and waits for a "
    "timer until *.",
    "nobody": "Key nobody has no run that holds it.",
}


def reads(seen: Visit, says: str) -> None:
    """Wait until the screen has a sentence. A star stands for any text."""
    pattern = ".*".join(re.escape(each) for each in says.split("*"))
    sentence = seen.page.locator("[data-explain] > span").first
    expect(sentence).to_have_text(re.compile(f"^{pattern}$", re.DOTALL))


@pytest.mark.parametrize("key", KEYS)
def test_a_key_says_why_its_head_does_not_move(visit: Callable[..., Visit], key: str) -> None:
    reads(visit(key_route(key)), KEYS[key])


@pytest.mark.parametrize("run_id", ["is-queued", "comes-later"])
def test_a_run_says_what_it_waits_for(visit: Callable[..., Visit], run_id: str) -> None:
    says = {
        "is-queued": "Run is-queued waits behind run is-running of its key, which is running busy "
        "(attempt 1).",
        "comes-later": "Run comes-later is delayed until *.",
    }[run_id]
    reads(visit(f"#/runs/{run_id}"), says)


@pytest.mark.parametrize(
    ("run_id", "state"), [("order-1", "succeeded"), ("refund-bad-8", "failed")]
)
def test_a_run_that_has_ended_says_how(
    visit: Callable[..., Visit], run_id: str, state: str
) -> None:
    seen = visit(f"#/runs/{run_id}")
    expect(seen.page.locator('[data-explain="ended"]')).to_contain_text(state)


def test_a_key_whose_head_has_no_slot_says_so(visit: Callable[..., Visit], shop: Shop) -> None:
    hogs = [of("call", "busy", f"hog-{n}", f"hog-{n}", tags=["hog"]) for n in range(SLOTS)]
    last = of("call", "busy", "no-slot", "has-no-slot", tags=["hog"])
    try:
        shop.call("POST", "/v1/batches", {"runs": [*hogs, last]})
        shop.until_explained("no-slot", "slot")
        reads(
            visit("#/keys/no-slot"),
            "Run has-no-slot has not started busy, which waits for a slot, because all of "
            "max_concurrent_steps are taken.",
        )
    finally:
        shop.call("POST", "/v1/bulk/cancel", {"tag": "hog", "preview": False})


def test_a_key_of_a_paused_runtime_says_who_paused_it(
    visit: Callable[..., Visit], shop: Shop
) -> None:
    try:
        shop.call("POST", "/v1/pause")
        shop.submit("nap", SLOW, key="all-paused", run_id="is-held-by-all")
        reads(
            visit("#/keys/all-paused"),
            "Run is-held-by-all is paused, because the runtime is paused by ada since *.",
        )
    finally:
        shop.call("POST", "/v1/resume")
    seen = visit("#/keys/all-paused")
    reads(seen, "Run is-held-by-all waits for a timer until *.")
