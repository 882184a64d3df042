"""Texts from the store are shown as texts."""

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.page.chromium import Visit, key_route
from tests.page.scene import HOSTILE, MARKUP, REVERSED

Opened = Callable[..., Visit]

PLACES = {
    "runs": "#/runs",
    "keys": "#/keys",
    "dead letters": "#/dead-letters",
    "events": "#/events",
}


def own_elements(seen: Visit) -> int:
    """Return the number of elements that only markup from the store can have made."""
    return seen.page.locator("img, iframe, object, embed, script:not([src]), b[onclick]").count()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_stays_a_text_everywhere(visit: Opened, name: str) -> None:
    text = HOSTILE[name]
    seen = visit("#/dead-letters")
    routes = [
        f"#/runs/hostile-{name}",
        f"#/runs/hostile-{name}?tab=journal",
        f"#/runs/hostile-{name}?tab=data",
        f"#/runs/shown-{name}?tab=data",
        f"#/runs/shown-{name}?tab=journal",
        key_route(text),
        f"#/runs?tag={name}",
        "#/keys",
        "#/dead-letters",
    ]
    for route in routes:
        seen.open(route)
        assert own_elements(seen) == 0, route
    seen.open(f"#/runs/hostile-{name}")
    if name == "markup":
        expect(seen.page.locator("#screen")).to_contain_text(MARKUP)


def test_a_text_that_changes_its_direction_changes_no_other(visit: Opened) -> None:
    seen = visit("#/runs?tag=reversed")
    cell = seen.row("hostile-reversed").locator(f'[title="{REVERSED}"]').first
    expect(cell).to_be_visible()
    kept = cell.evaluate("(node) => getComputedStyle(node).unicodeBidi")
    assert kept in ("isolate", "plaintext", "isolate-override")


def test_a_hostile_search_finds_nothing_and_runs_nothing(visit: Opened) -> None:
    seen = visit("#/")
    seen.expected.append("status of 404")
    seen.page.keyboard.press("/")
    seen.page.keyboard.type(MARKUP)
    seen.page.keyboard.press("Enter")
    seen.shown()
    assert own_elements(seen) == 0


@pytest.mark.parametrize(
    "route",
    [
        "#/runs?state=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E",
        "#/runs?since=yesterday&limit=1e9",
        "#/runs/%E0%A4%A",
        "#/keys/%00",
        "#/start?workflow=%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "#/groups/..%2F..%2Fstatistics",
        "#/__proto__",
        "#/constructor?constructor=1&__proto__=2",
    ],
)
def test_a_hostile_address_is_answered_with_a_text(visit: Opened, route: str) -> None:
    seen = visit("#/")
    seen.expected.append(r"status of 4\d\d")
    seen.page.goto(f"{seen.url}/{route}")
    seen.shown()
    assert own_elements(seen) == 0
    seen.open("#/runs")
