"""Debian's chromium against the real service and a real worker, both started once for all tests of a module.

Not for the session: playwright keeps an event loop running in the main thread, and later tests start their own.
"""

import json
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.browser_steps import Site
from tests.support.processes.stack import Stack
from tests.support.requirements import missing

CHROMIUM = "/usr/bin/chromium"
QUICK = {"max_warmup_steps": 3, "window_steps": 2, "min_windows": 3, "max_windows": 3, "min_measure_s": 0}
"""Pages show a run's figures after a few steps."""
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if shutil.which(CHROMIUM) is None:
        missing("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    stack = Stack(tmp_path_factory.mktemp("site"))
    try:
        stack.start_service(measure=json.dumps(QUICK))
        stack.start_worker()
        yield Site(stack, chromium)
    finally:
        stack.close()


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    """A page at 1600 pixels that must not complain."""
    watched = site.open(viewport={"width": 1600, "height": 1000}, permissions=["clipboard-read", "clipboard-write"])
    yield watched.page
    watched.close()
