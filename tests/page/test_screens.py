"""Every screen of the web page shows its data, in light and dark, and in a narrow window."""

from collections.abc import Callable

import pytest

from tests.page.chromium import Visit, key_route
from tests.page.scene import LONG_ID, LONG_KEY

SCREENS = {
    "overview": "#/",
    "runs": "#/runs",
    "runs of a filter": "#/runs?state=failed&workflow=refund",
    "runs, none": "#/runs?key=nobody",
    "run, timeline": "#/runs/order-1",
    "run, journal": "#/runs/order-1?tab=journal",
    "run, data": "#/runs/order-1?tab=data",
    "run, family": "#/runs/is-a-parent?tab=family",
    "run, graph": "#/runs/parcel-1?tab=graph",
    "run, failed": "#/runs/refund-busy-5",
    "run, long id": f"#/runs/{LONG_ID}",
    "keys": "#/keys",
    "key": "#/keys/acme",
    "key, entities": "#/keys/ann",
    "key, idle": "#/keys/nobody",
    "key, long": key_route(LONG_KEY),
    "dead letters": "#/dead-letters",
    "quarantine": "#/quarantine",
    "approvals": "#/approvals",
    "schedules": "#/schedules",
    "groups": "#/groups",
    "group": "#/groups/book-7",
    "policies": "#/policies",
    "events": "#/events",
    "start": "#/start?workflow=checkout",
    "audit": "#/audit",
}


@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_is_accessible_and_fits_a_narrow_window(
    visit: Callable[..., Visit], screen: str
) -> None:
    seen = visit(SCREENS[screen])
    found = seen.audit()
    assert not found, "\n".join(found)
    seen.page.set_viewport_size({"width": 400, "height": 800})
    assert seen.overflow() <= 0
