"""Every page, light and dark, wide and narrow, as PNG files: `make screenshots` writes them to screenshots/. With `--docs` the
few that the documentation shows, small, and terminals beside them: `make pictures` writes them to docs/pictures/.

Starts a service and workers of its own and runs small real studies, retunes one of their answers, and takes pictures
before, while and after; what happens is in scenes.py. Everything shown was measured on this machine minutes before.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.trial import Trial
from shardtune.db.clock import utc_now
from shardtune.service.cli.tune import live_table
from tests.browser.docs_pictures import PAGES, PageCamera, output_of, take_terminal
from tests.browser.scenes import Story
from tests.support.processes.stack import Stack
from tests.support.service.webhook_receivers import receiver

CHROMIUM = "/usr/bin/chromium"
FORMS = {
    f"{scheme}-{size}": (scheme, {"width": width, "height": height})
    for scheme in ("light", "dark")
    for size, width, height in (("wide", 1280, 900), ("narrow", 390, 844))
}
Shown = str | tuple[str, Callable[[Page], object]]
"""An address, and what is done there before the picture."""

EMPTY: dict[str, Shown] = {
    "empty-best": "/",
    "empty-studies": "/studies",
    "empty-schedules": "/schedules",
    "empty-workers": "/workers",
    "empty-costs": "/costs",
    "empty-settings": "/settings",
    "empty-compare": "/compare",
}
FORMS_OF_NEW: dict[str, Shown] = {
    "new": "/new",
    "new-worker": ("/new", lambda page: choose_worker(page)),
    "new-error": ("/new", lambda page: mistake(page, "Global batch", "0", "Create study")),
    "calculator": "/new?model=llama-2-70b&hardware=H100-SXM5-80GB&size=6&sequence_length=4096",
    "plans": "/plans",
    "plans-answer": "/plans?tokens=3e11&counts=32..512&prices=h100%3D2.1,h200%3D2.6&budget=60000&deadline=2099-01-01",
    "docs": "/docs/",
    "schedules-error": ("/schedules", lambda page: mistake(page, "Cron", "0 25 * * *", "Create schedule")),
    "best-no-match": "/?q=nothing-like-it",
    "error": "/studies/none",
}


def main() -> None:
    """Let it happen, and take the pictures."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshots", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="default: screenshots, or docs/pictures")
    parser.add_argument("--docs", action="store_true", help="take the pictures of the documentation")
    options = parser.parse_args()
    folder = options.folder or Path("docs/pictures" if options.docs else "screenshots")
    began = time.monotonic()
    # Half a minute, of which no page shows anything.
    os.environ.setdefault("SHARDTUNE_WORKER_MEASURE_RATES", "false")
    with tempfile.TemporaryDirectory(prefix="shardtune-screenshots-") as scratch, sync_playwright() as playwright:
        stack = Stack(Path(scratch))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            with receiver() as hook:
                story = Story(stack, hook)
                small = PageCamera(browser, folder) if options.docs else None
                camera = Camera(browser, story.address, folder, small)
                camera.shoot(EMPTY)
                story.search()
                story.change_the_machine()
                running = story.while_running()
                camera.shoot(running)
                if options.docs:
                    take_live_table(stack, running["study-running"].rpartition("/")[2], folder)
                story.quiet_down()
                pages = story.pages()
                camera.shoot(pages | FORMS_OF_NEW)
                if options.docs:
                    take_prediction(folder)
                # With the first key everything needs one, so these come last.
                key = stack.http.post("/v1/keys", json={"name": "admin", "scopes": ["admin"]}).json()["secret"]
                camera.shoot({"login": "/login", "login-wrong": ("/login", lambda page: log_in(page, "stk_wrong"))})
                camera.shoot({"key-made": ("/settings", make_key), "settings": "/settings"}, key)
        finally:
            stack.close()
            browser.close()
    taken = [path for path in folder.rglob("*") if path.suffix in {".png", ".webp", ".svg"}]
    print(f"{len(taken)} pictures in {folder}/ in {time.monotonic() - began:.0f} s")


class Camera:
    """Takes pictures of pages of one service."""

    def __init__(self, browser: Browser, address: str, folder: Path, small: PageCamera | None = None) -> None:
        """`small` takes the pictures instead, for the documentation."""
        self._browser, self._address, self._folder, self._small = browser, address, folder, small

    def shoot(self, pages: dict[str, Shown], key: str = "") -> None:
        """Each page in light and dark, wide and narrow, from one visit; logged in where there is a key."""
        with closing(self._browser.new_context(base_url=self._address)) as context:
            if key:
                page = context.new_page()
                page.goto("/login")
                log_in(page, key)
                page.wait_for_url("**/")
            for name, shown in pages.items():
                if self._small and name not in PAGES:
                    continue
                self._picture(context, name, *((shown,) if isinstance(shown, str) else shown))

    def _picture(
        self, context: BrowserContext, name: str, path: str, act: Callable[[Page], object] = lambda page: None
    ) -> None:
        page = context.new_page()
        page.set_viewport_size({"width": 1600, "height": 1000})
        page.goto(path)
        act(page)
        if self._small:
            self._small.take(page, name)
            page.close()
            return
        for form, (scheme, size) in FORMS.items():
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size(size)
            page.wait_for_timeout(100)
            page.screenshot(path=self._folder / form / f"{name}.png", full_page=True)
        page.close()


def take_live_table(stack: Stack, study_id: str, folder: Path) -> None:
    """The table that `tune` draws while a study runs, of a study that runs here."""
    study = Study.model_validate(stack.study(study_id))
    trials = [Trial.model_validate(trial) for trial in stack.trials(study_id)]
    elapsed_s = (utc_now() - study.created_at).total_seconds()
    table = live_table.render(study, trials, (), elapsed_s, rows=14)
    take_terminal(folder, "terminal-tune", "shardtune tune my-study.json", table)


def take_prediction(folder: Path) -> None:
    """The tables that `predict` prints about hardware that is not here."""
    words = ["predict", "llama-3.1-8b", "--cluster", "8xh100", "--top", "4"]
    take_terminal(folder, "terminal-predict", f"shardtune {' '.join(words)}", output_of(*words))


def choose_worker(page: Page) -> None:
    """A model pasted for the hardware of a live worker."""
    page.get_by_label("Hardware").select_option(index=0)
    page.get_by_label("Preset").select_option("llama-tiny")
    page.get_by_label("Precision").select_option("fp32")
    page.wait_for_timeout(1500)


def mistake(page: Page, field: str, value: str, button: str) -> None:
    """A form sent with a value that cannot be used."""
    if button == "Create schedule":
        page.get_by_label("Name").fill("nightly")
    page.get_by_role("textbox", name=field).fill(value)
    page.get_by_role("button", name=button).click()
    page.locator("[role=alert]").wait_for()


def log_in(page: Page, key: str) -> None:
    """The form of the login page, sent."""
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()


def make_key(page: Page) -> None:
    """A key for reading; its secret is shown."""
    page.get_by_label("Name").fill("grafana")
    page.get_by_label("studies:read").check()
    page.get_by_role("button", name="Create key").click()
    page.get_by_role("status").wait_for()


if __name__ == "__main__":
    main()
