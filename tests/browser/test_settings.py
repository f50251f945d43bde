"""A service with keys in the browser: log in, make keys and webhooks and read what became of a message, by keyboard."""

import pytest
from playwright.sync_api import expect

from tests.browser.browser_steps import Site, press
from tests.support.processes.stack import Stack
from tests.support.service.webhook_receivers import receiver

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def hook():
    """Somebody's address."""
    with receiver() as address:
        yield address


@pytest.fixture(scope="module")
def locked(chromium, tmp_path_factory):
    """A service with one key, and that key; no worker."""
    stack = Stack(tmp_path_factory.mktemp("locked"))
    try:
        stack.start_service(webhook_allow_private="1")
        response = stack.http.post("/v1/keys", json={"name": "first", "scopes": ["admin"]})
        yield Site(stack, chromium), response.json()["secret"]
    finally:
        stack.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1600), ("dark", 390)])
def test_log_in_then_make_a_key_and_a_webhook_by_keyboard(locked, hook, scheme, width):
    site, secret = locked
    watched = site.open(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = watched.page
    page.goto("/settings")
    expect(page.get_by_label("API key")).to_be_focused()
    watched.assert_accessible()
    page.keyboard.type(secret)
    page.keyboard.press("Enter")
    page.wait_for_url("**/settings")
    watched.assert_accessible()
    page.get_by_label("Name").fill(f"ci-{width}")
    page.get_by_label("studies:read").check()
    press(page, "button", "Create key")
    expect(page.get_by_role("status")).to_contain_text(f"Key ci-{width} was created")
    page.get_by_label("Address").fill(hook)
    press(page, "button", "Create webhook")
    expect(page.get_by_role("status")).to_contain_text("whsec_")
    watched.assert_accessible()
    page.get_by_role("link", name="Deliveries").last.click()
    press(page, "button", "Send a test")
    expect(page.locator("#hook table")).to_contain_text("webhook.test")
    expect(page.locator("#hook table .badge")).to_have_text("delivered")
    watched.assert_accessible()
    press(page, "button", "Disable")
    expect(page.locator("#hook")).to_contain_text("Disabled by first")
    page.once("dialog", lambda dialog: dialog.accept())
    press(page, "button", "Delete")
    page.wait_for_url("**/settings")
    press(page, "button", "Log out")
    page.wait_for_url("**/login**")
    watched.close()


def test_webhooks_work_without_scripts(locked, hook):
    site, secret = locked
    page = site.browser.new_context(base_url=site.address, java_script_enabled=False).new_page()
    page.goto("/settings")
    page.get_by_label("API key").fill(secret)
    page.get_by_role("button", name="Log in").click()
    page.get_by_label("Address").fill(hook)
    page.get_by_text("Events: ends of studies").click()
    page.get_by_label("study.complete").check()
    page.get_by_role("button", name="Create webhook").click()
    expect(page.get_by_role("status")).to_contain_text("whsec_")
    page.get_by_role("button", name="Test").click()
    expect(page.locator("#hook")).to_contain_text("study.complete")
    expect(page.locator("#hook table .badge")).to_have_text("delivered")
    page.context.close()
