"""Debian's chromium against the real service and a real worker, both started once for all tests of a module.

Not for the session: playwright keeps an event loop running in the main thread, and later tests start their own.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from needs import missing
from playwright.sync_api import Browser, Page, expect, sync_playwright
from real_parts import Stack

CHROMIUM = "/usr/bin/chromium"
expect.set_options(timeout=15_000)


@dataclass
class Site:
    """The running service, and what the browser complained about."""

    stack: Stack
    browser: Browser

    @property
    def address(self) -> str:
        return str(self.stack.http.base_url).rstrip("/")

    def open(self, **options: object) -> "Watched":
        context = self.browser.new_context(base_url=self.address, **options)
        return Watched(context.new_page(), self.address)


class Watched:
    """A page whose console and requests are watched."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.complaints = page, []
        page.on("console", lambda message: self._note(message.type in ("error", "warning"), message.text))
        page.on("pageerror", lambda error: self._note(True, str(error)))
        page.on("request", lambda request: self._note(not request.url.startswith(address), f"foreign: {request.url}"))

    def _note(self, is_bad: bool, text: str) -> None:
        if is_bad:
            self.complaints.append(text)

    def close(self) -> None:
        self.page.context.close()
        assert not self.complaints, self.complaints


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if shutil.which(CHROMIUM) is None:
        missing("chromium")
    stack = Stack(tmp_path_factory.mktemp("site"))
    try:
        stack.start_service()
        stack.start_worker()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            yield Site(stack, browser)
            browser.close()
    finally:
        stack.close()


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    """A page at 1600 pixels that must not complain."""
    watched = site.open(viewport={"width": 1600, "height": 1000}, permissions=["clipboard-read", "clipboard-write"])
    yield watched.page
    watched.close()
