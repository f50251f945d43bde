"""The site as the service serves it, in a real browser: its policy blocks nothing it needs, it can be searched, axe is content."""

import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from fastapi import FastAPI
from playwright.sync_api import Browser, Page, expect, sync_playwright

from shardtune.service.pages import documentation
from shardtune.service.settings import Settings
from tests.support.requirements import missing

CHROMIUM = "/usr/bin/chromium"
PAGES = ("index.html", "reference/settings.html", "how-to/own-code.html")


@pytest.fixture(scope="module")
def address(built_site: Path) -> Iterator[str]:
    app = FastAPI()
    documentation.install(app, Settings(docs_dir=built_site))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/docs/"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if shutil.which(CHROMIUM) is None:
        missing("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def scheme() -> str:
    """Scheme of the page; a test that depends on it names both."""
    return "light"


@pytest.fixture
def page(scheme: str, chromium: Browser, address: str) -> Iterator[Page]:
    """A page that may neither complain nor load anything from another host."""
    context = chromium.new_context(base_url=address, color_scheme=scheme, viewport={"width": 1440, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    loaded: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda sent: loaded.append(sent.url))
    yield page
    context.close()
    assert complaints == []
    assert [url for url in loaded if not url.startswith((address, "data:"))] == []


def violations(page: Page) -> list[str]:
    # axe itself adds a style to the page, which the policy blocks: only its findings count.
    actual_violations = Axe().run(page).response["violations"]
    return [f"{entry['id']}: {entry['nodes'][0]['html'][:200]}" for entry in actual_violations]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_axe_is_content_with_a_page(page, path):
    page.goto(path)
    assert violations(page) == []


def test_the_palette_can_be_chosen_and_stays(page):
    page.goto("index.html")
    scheme = page.locator("body").get_attribute("data-md-color-scheme")
    page.locator("label.md-header__button[for^=__palette]:visible").click()
    expect(page.locator("body")).not_to_have_attribute("data-md-color-scheme", scheme)
    page.reload()
    expect(page.locator("body")).not_to_have_attribute("data-md-color-scheme", scheme)


def test_the_site_can_be_searched(page):
    # The shortcut is one of a script that may come after the page itself.
    page.goto("index.html", wait_until="networkidle")
    page.keyboard.press("/")
    page.keyboard.type("webhook", delay=50)
    expect(page.get_by_text("Receive webhooks").last).to_be_visible(timeout=20_000)


@pytest.mark.parametrize("path", PAGES)
def test_a_narrow_page_scrolls_in_one_direction(page, path):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
