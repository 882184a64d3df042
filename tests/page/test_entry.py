"""The ways into the page."""

from collections.abc import Callable

from playwright.sync_api import expect

from tests.page.chromium import Visit
from tests.page.conftest import Visitor
from tests.page.scene import Shop

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
    expect(seen.page.locator("#who")).to_contain_text("adminer")


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
    expect(seen.page.locator("#who")).to_contain_text("operateer")


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
