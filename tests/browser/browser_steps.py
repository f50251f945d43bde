"""A browser that watches what pages complain about, and what tests do in it."""

from dataclasses import dataclass

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.support.processes.stack import Stack


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

    def assert_accessible(self) -> None:
        """Assert that axe-core finds no serious violation and that nothing is wider than the window."""
        violations = Axe().run(self.page).response["violations"]
        serious = [(v["id"], v["nodes"][0]["html"]) for v in violations if v["impact"] in ("serious", "critical")]
        assert not serious, (self.page.url, serious)
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), self.page.url

    def close(self) -> None:
        self.page.context.close()
        assert not self.complaints, self.complaints


def press(page: Page, role: str, name: str) -> None:
    """Reach a control by Tab alone, and press it."""
    element = page.get_by_role(role, name=name, exact=True).first
    expect(element).to_be_visible()
    for _ in range(80):
        page.keyboard.press("Tab")
        if element.evaluate("element => element === document.activeElement"):
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"{role} {name!r} is not reached by Tab")
