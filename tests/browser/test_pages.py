"""The pages as a person uses them: one real study is created, watched and read; others are cancelled and retuned."""

import json
import re
from contextlib import contextmanager
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, expect

from tests.browser.browser_steps import press
from tests.support.long_run import IS_LONG
from tests.support.processes.stack import TINY, study

pytestmark = pytest.mark.ranks

FORMS = [("light", 1280), ("dark", 390)]
"""Each scheme and each width; in the long run also the other way round."""
if IS_LONG:
    FORMS += [("light", 390), ("dark", 1280)]


OWN = {"strategy": {"kind": "ddp", "bucket_cap_mb": 1}, "micro_batch": 1}
"""The user's own configuration as baseline: half of the final comparison's runs, whose ranks cost a quarter of ZeRO's."""
LENGTHS = "/new?model=gpt2&sequence_length=1024&lengths=[[64,300],[512,40],[1000,1]]&hardware=h100"
"""The form with the picture of samples' lengths, and the padding of each layout."""
BUDGET = {"max_trials": 3, "max_pairs": 7, "repeat_disturbed": 0}
SPACE = {"backends": ["ddp", "fsdp2"]}
"""Each backend's default is a trial beside the baseline; their ranks cost less than ZeRO's."""


def fill_in(page: Page, batch: str = "8") -> None:
    page.goto("/new")
    page.get_by_label("Preset").select_option("custom")
    page.get_by_role("textbox", name="config.json").fill(json.dumps(TINY))
    page.get_by_label("Sequence length").fill("32")
    page.get_by_label("Global batch").fill(batch)
    page.get_by_label("Precision").select_option("fp32")
    page.get_by_label("Trials, at most").fill("4")


@pytest.fixture(scope="module")
def finished(site) -> str:
    """The address of a study that was followed to its end without a reload, after one that was created by mouse."""
    watched = site.open(viewport={"width": 1600, "height": 1000})
    page = watched.page
    create_by_mouse(page)
    path = f"/studies/{site.stack.create(study(budget=BUDGET, baseline=OWN, space=SPACE))}"
    page.goto(path)
    page.evaluate("window.notReloaded = true")
    expect(page.locator("#activity")).to_contain_text("trial 0", timeout=90_000)
    expect(page.locator("#chart-best-so-far .mark")).not_to_have_count(0, timeout=60_000)
    expect(page.locator("#activity")).to_contain_text("validation run", timeout=120_000)
    expect(page.locator("#head")).to_contain_text("complete", timeout=300_000)
    expect(page.locator("#answer")).to_contain_text(
        re.compile("Confirmed|No significant improvement|is slower|[Tt]oo busy|Undecided")
    )
    assert page.evaluate("window.notReloaded")
    watched.close()
    return path


def create_by_mouse(page: Page) -> None:
    """Start a study and follow it to its first trial; the study that is read is followed to its end."""
    fill_in(page, batch="4")
    expect(page.locator("#result")).to_contain_text("What fits llama")
    page.get_by_role("button", name="Create study").click()
    page.wait_for_url("**/studies/study-*")
    page.evaluate("window.notReloaded = true")
    expect(page.locator("#charts")).to_contain_text("Charts appear with the first measured trial")
    expect(page.locator("#activity")).to_contain_text("trial 0", timeout=90_000)
    assert page.evaluate("window.notReloaded")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#head")).to_contain_text("cancelled")


@pytest.fixture
def running(site) -> str:
    """A study that has just been created, and is cancelled in the end."""
    study_id = site.stack.create(study(budget=BUDGET | {"max_trials": 40}, seed=1))
    yield f"/studies/{study_id}"
    site.stack.http.post(f"/v1/studies/{study_id}:cancel")


@pytest.fixture
def quiet(site):
    """A worker that takes no runs: what such a test shows of a study needs no trial of it."""
    with drained(site):
        yield


CUT = """() => [...document.querySelectorAll('.chart svg text')].filter(text =>
  text.getBoundingClientRect().left < text.closest('.scroll, .chart').getBoundingClientRect().left - 0.5
).map(text => text.textContent)"""
"""Words of charts that begin left of what shows them."""


@contextmanager
def drained(site):
    """Have the worker take no more runs: its ranks and the browser would share the cores."""
    (worker,) = site.stack.http.get("/v1/workers").json()["workers"]
    site.stack.http.post(f"/v1/workers/{worker['worker_id']}:drain").raise_for_status()
    try:
        yield
    finally:
        site.stack.http.post(f"/v1/workers/{worker['worker_id']}:resume").raise_for_status()


def assert_pages_fit(watched, paths):
    for path in paths:
        watched.page.goto(path)
        watched.assert_accessible()
        assert watched.page.evaluate(CUT) == [], path


@pytest.mark.parametrize(("scheme", "width"), FORMS)
def test_every_page_is_accessible_and_fits(site, finished, running, scheme, width):
    """The pages of studies in every form; each of the others in one of two forms, in the long run in all."""
    watched = site.open(viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert_pages_fit(watched, [running, "/workers"])
    number = finished.split("/")[-1]
    others = [
        "/studies",
        LENGTHS,
        "/schedules",
        "/settings",
        "/compare",
        "/docs/",
        "/plans",
        "/plans?tokens=3e11&counts=64,128&prices=h100%3D2.1&deadline=2099-01-01",
        "/nothing",
        f"{finished}/export",
        f"/compare?pick={number}:0&pick={number}:1",
    ]
    with drained(site):
        assert_pages_fit(watched, ["/", finished, f"{finished}/trials/0"])
        assert_pages_fit(watched, others if IS_LONG else others[FORMS.index((scheme, width)) :: len(FORMS)])
    # Chromium reports the 404 of the page that does not exist.
    watched.complaints = [text for text in watched.complaints if "404" not in text]
    watched.close()


def test_pause_and_cancel_by_keyboard(page, quiet, running):
    page.goto(running)
    page.once("dialog", lambda dialog: dialog.accept())
    for name, state in (("Pause", "paused"), ("Resume", "running"), ("Cancel", "cancelled")):
        press(page, "button", name)
        expect(page.locator("#head")).to_contain_text(state)


def test_create_by_keyboard_and_retune_by_mouse(page, quiet):
    fill_in(page, batch="16")
    press(page, "button", "Create study")
    page.wait_for_url("**/studies/study-*")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#head")).to_contain_text("cancelled")
    first = page.url
    page.get_by_role("button", name="Run again").first.click()
    page.wait_for_url(lambda url: url != first)
    expect(page.locator("#head")).to_contain_text("running")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#head")).to_contain_text("cancelled")


def test_best_config_leads_to_its_files(page, finished):
    page.goto("/?q=llama")
    page.locator(".targets").get_by_role("link", name="Export").first.click()
    copy = page.get_by_role("button", name="Copy").first
    copy.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "strategy" in json.loads(copied)["config"]
    with page.expect_download() as download:
        page.get_by_role("heading", name="launch.sh").get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "launch.sh"


def test_a_best_row_is_exported_and_retuned_by_keyboard(page, finished, quiet):
    page.goto("/?q=llama")
    press(page, "link", "Export")
    page.wait_for_url("**/export")
    with page.expect_download() as download:
        press(page, "link", "Download")
    assert download.value.suggested_filename
    page.goto("/?q=llama")
    press(page, "button", "Run again")
    page.wait_for_url("**/studies/study-*")
    assert not page.url.endswith(finished)
    page.once("dialog", lambda dialog: dialog.accept())
    press(page, "button", "Cancel")
    expect(page.locator("#head")).to_contain_text("cancelled")


def test_the_workers_page_follows_without_a_reload(page, site, running):
    page.goto("/workers")
    page.evaluate("window.notReloaded = true")
    expect(page.locator(".worker")).to_contain_text("trial", timeout=60_000)
    page.get_by_text("Fingerprint").click()
    site.stack.http.post(f"/v1/studies/{running.split('/')[-1]}:cancel").raise_for_status()
    expect(page.locator(".worker")).to_contain_text("waiting for work", timeout=30_000)
    expect(page.locator(".worker")).to_contain_text("Last run")
    expect(page.locator(".worker details")).to_have_attribute("open", "")
    assert page.evaluate("window.notReloaded")


def test_a_whole_run_is_planned_by_keyboard(page):
    page.goto("/plans")
    page.get_by_label("Numbers").fill("64, 128")
    page.get_by_label("Price of a GPU-hour by kind").fill("h100=2.10, h200=2.60")
    press(page, "button", "Plan")
    expect(page.locator("#result")).to_contain_text("Cheapest")
    expect(page.locator("table.plans tbody tr")).to_have_count(4)
    expect(page.locator("#chart-plan-money .mark")).to_have_count(4)


def test_trials_are_sorted_and_compared_by_keyboard(page, finished):
    page.goto(finished)
    press(page, "link", "tokens/s/GPU")
    page.wait_for_url("**sort=speed**")
    expect(page.locator("table.trials th[aria-sort=descending]")).to_contain_text("tokens/s/GPU")
    speeds = [
        float(text.replace(",", ""))
        for text in page.locator("table.trials td[data-label='tokens/s/GPU']").all_inner_texts()
    ]
    assert len(speeds) == 3 and speeds == sorted(speeds, reverse=True)
    for box in page.locator("table.trials input[type=checkbox]").all()[:2]:
        box.focus()
        page.keyboard.press("Space")
    press(page, "button", "Compare selected")
    expect(page.locator("table.compare tr.differs")).not_to_have_count(0)


def test_trials_are_compared_by_mouse(page, finished):
    page.goto(finished)
    page.get_by_label("Compare trial 0").check()
    page.get_by_label("Compare trial 1").check()
    page.get_by_role("button", name="Compare selected").click()
    expect(page.locator("table.compare").first.locator("thead a")).to_have_count(2)
    expect(page.locator("table.compare tr.differs")).not_to_have_count(0)


def test_a_trial_shows_its_steps_ranks_and_memory(page, finished):
    page.goto(f"{finished}/trials/0")
    expect(page.locator("#chart-loss polyline.own")).to_be_visible()
    expect(page.locator("#chart-step-times .area.warm-up")).to_be_visible()
    expect(page.get_by_role("heading", name="Rank by rank")).to_be_visible()
    expect(page.locator("main")).to_contain_text("shardtune run-trial trial-0/config.json")


def test_the_calculator_follows_what_is_typed(page):
    page.goto("/new")
    page.get_by_label("Preset").select_option("llama-2-70b")
    page.get_by_label("Hardware").select_option("H100-SXM5-80GB")
    expect(page.locator("#result")).to_contain_text("69 billion parameters, 8 × H100")
    expect(page.locator("#result .badge.bad").first).to_have_text("does not fit")
    slider = page.get_by_role("slider", name="GPUs")
    slider.focus()
    page.keyboard.press("End")
    expect(page.locator("#result")).to_contain_text("128 × 8 × H100")
    expect(page.locator("#gpus")).to_have_text("1024")
    page.get_by_label("Sequence length").fill("long")
    expect(page.locator("#result")).to_contain_text("must be a whole number")


def test_a_schedule_is_made_run_paused_and_deleted_by_keyboard(site, finished):
    watched = site.open(viewport={"width": 390, "height": 900}, color_scheme="dark")
    page = watched.page
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto("/schedules")
    page.get_by_label("Name").fill("nightly")
    page.get_by_role("textbox", name="Cron").fill("30 2 * * *")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    # Closed now, so that what is asked for waits.
    opens = datetime.now(ZoneInfo("Europe/Berlin")) + timedelta(hours=3)
    page.get_by_label("Starts only between").fill(f"{opens:%H:%M}-{opens + timedelta(minutes=5):%H:%M}")
    press(page, "button", "Create schedule")
    expect(page.locator("#schedules")).to_contain_text("At 02:30 every day (Europe/Berlin)")
    press(page, "button", "Run in its window")
    expect(page.locator("#schedules")).to_contain_text("by hand: requested 1 retune")
    expect(page.locator("#retunes .badge")).to_have_text("queued")
    expect(page.locator("#retunes")).to_contain_text("waits for a window of its schedule")
    watched.assert_accessible()
    press(page, "button", "Pause")
    expect(page.locator("#schedules .badge")).to_have_text("paused")
    expect(page.locator("#retunes .badge")).to_have_text("skipped")
    press(page, "button", "Delete")
    expect(page.locator("main")).to_contain_text("No schedule yet")
    watched.close()


def test_everything_to_read_and_send_works_without_scripts(site, finished):
    watched = site.open(java_script_enabled=False)
    page = watched.page
    page.goto("/?q=nothing-like-it")
    expect(page.locator("main")).to_contain_text("No answered study matches")
    page.goto("/new")
    page.get_by_label("Preset").select_option("gpt2")
    page.get_by_role("button", name="Calculate").click()
    expect(page.locator("#result")).to_contain_text("124 million parameters")
    page.goto(finished)
    page.get_by_label("Backend").select_option("ddp")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("table.trials")).to_contain_text("DDP")
    expect(page.locator("table.trials")).not_to_contain_text("FSDP2")
    watched.close()


def test_the_theme_is_kept(page):
    page.goto("/")
    page.get_by_role("button", name="Switch between light and dark").click()
    page.goto("/workers")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    expect(page.get_by_role("button", name="Switch between light and dark")).to_have_text("Light")
