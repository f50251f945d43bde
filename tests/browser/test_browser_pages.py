"""The pages as a person uses them: one real study is created, watched and read; others are cancelled and retuned."""

import json
import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from real_parts import TINY, study

pytestmark = pytest.mark.ranks


def fill_in(page: Page, batch: str = "8") -> None:
    page.goto("/new")
    page.get_by_label("Preset").select_option("custom")
    page.get_by_role("textbox", name="config.json").fill(json.dumps(TINY))
    page.get_by_label("Sequence length").fill("32")
    page.get_by_label("Global batch").fill(batch)
    page.get_by_label("Recipe").select_option("fp32")
    page.get_by_label("Trials, at most").fill("4")


@pytest.fixture(scope="module")
def finished(site) -> str:
    """The address of a study that was created by mouse and followed to its end without a reload."""
    watched = site.open(viewport={"width": 1600, "height": 1000})
    page = watched.page
    fill_in(page)
    expect(page.locator("#result")).to_contain_text("What fits llama")
    page.get_by_role("button", name="Create study").click()
    page.wait_for_url("**/studies/study-*")
    page.evaluate("window.notReloaded = true")
    expect(page.locator("#charts")).to_contain_text("Charts appear with the first measured trial")
    expect(page.locator("#activity")).to_contain_text("trial 0", timeout=90_000)
    expect(page.locator("#chart-best-so-far .mark")).not_to_have_count(0, timeout=60_000)
    expect(page.locator("#activity")).to_contain_text("fresh run", timeout=120_000)
    expect(page.locator("#head")).to_contain_text("complete", timeout=300_000)
    expect(page.locator("#answer")).to_contain_text(re.compile("Confirmed|No significant improvement"))
    assert page.evaluate("window.notReloaded")
    path = page.url.removeprefix(site.address)
    watched.close()
    return path


@pytest.fixture
def running(site) -> str:
    """A study that has just been created, and is cancelled in the end."""
    study_id = site.stack.create(study(budget={"max_trials": 40}, seed=1))
    yield f"/studies/{study_id}"
    site.stack.http.post(f"/v1/studies/{study_id}:cancel")


@pytest.mark.parametrize("width", [1600, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible_and_fits(site, finished, running, scheme, width):
    watched = site.open(viewport={"width": width, "height": 900}, color_scheme=scheme)
    paths = [
        "/",
        "/studies",
        "/new",
        "/workers",
        "/settings",
        "/compare",
        "/nothing",
        finished,
        running,
        f"{finished}/trials/0",
    ]
    paths += [f"{finished}/export", f"/compare?pick={finished.split('/')[-1]}:0&pick={finished.split('/')[-1]}:1"]
    for path in paths:
        watched.page.goto(path)
        found = Axe().run(watched.page).response["violations"]
        serious = [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")]
        assert not serious, (path, serious)
        assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    # Chromium reports the 404 of the page that does not exist.
    watched.complaints = [text for text in watched.complaints if "404" not in text]
    watched.close()


def test_pause_and_cancel_by_keyboard(page, running):
    page.goto(running)
    page.once("dialog", lambda dialog: dialog.accept())
    for name, state in (("Pause", "paused"), ("Resume", "running"), ("Cancel", "cancelled")):
        press(page, "button", name)
        expect(page.locator("#head")).to_contain_text(state)


def test_create_by_keyboard_and_retune_by_mouse(page, site):
    fill_in(page, batch="16")
    press(page, "button", "Create study")
    page.wait_for_url("**/studies/study-*")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#head")).to_contain_text("cancelled")
    first = page.url
    page.get_by_role("button", name="Retune").click()
    page.wait_for_url(lambda url: url != first)
    expect(page.locator("#head")).to_contain_text("running")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#head")).to_contain_text("cancelled")


def test_best_config_leads_to_its_files(page, finished):
    page.goto("/?q=llama")
    page.locator("table.best").get_by_role("link", name="Export").first.click()
    copy = page.get_by_role("button", name="Copy").first
    copy.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "strategy" in json.loads(copied)["config"]
    with page.expect_download() as download:
        page.get_by_role("heading", name="launch.sh").get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "launch.sh"


def test_trials_are_sorted_and_compared_by_keyboard(page, finished):
    page.goto(finished)
    press(page, "link", "tokens/s/GPU")
    page.wait_for_url("**sort=speed**")
    expect(page.locator("table.trials th[aria-sort=descending]")).to_contain_text("tokens/s/GPU")
    speeds = [float(text.replace(",", "")) for text in page.locator("td[data-label='tokens/s/GPU']").all_inner_texts()]
    assert len(speeds) == 4 and speeds == sorted(speeds, reverse=True)
    for box in page.locator("table.trials input[type=checkbox]").all()[:2]:
        box.focus()
        page.keyboard.press("Space")
    press(page, "button", "Compare the ticked")
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


def press(page: Page, role: str, name: str) -> None:
    """Reach a control by Tab alone, and press it."""
    wanted = page.get_by_role(role, name=name, exact=True).first
    expect(wanted).to_be_visible()
    for _ in range(80):
        page.keyboard.press("Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"{role} {name!r} is not reached by Tab")
