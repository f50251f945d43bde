"""Every page, light and dark, wide and narrow, as PNG files: `make screenshots` writes them to screenshots/.

Starts a service and a worker of its own and runs three small real studies: one answered, one with too little memory
for most configurations, and one that is still running while the pictures are taken.
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from real_parts import TINY, Stack, study, until

CHROMIUM = "/usr/bin/chromium"
WIDTHS = {"wide": (1600, 1000), "narrow": (390, 844)}


def main() -> None:
    """Run the studies, then visit every page in every form."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "screenshots")
    with tempfile.TemporaryDirectory(prefix="shardtune-screenshots-") as scratch:
        stack = Stack(Path(scratch))
        try:
            stack.start_service(WEBHOOK_ALLOW_PRIVATE="1")
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                address = str(stack.http.base_url).rstrip("/")
                shoot(browser, address, folder, {"empty-best": "/", "empty-workers": "/workers"})
                settings = settings_of(stack)
                shoot(browser, address, folder, pages_of(stack) | settings)
                # With the first key everything needs one, so these come last.
                key = stack.http.post("/v1/keys", json={"name": "admin", "scopes": ["admin"]}).json()["secret"]
                shoot(browser, address, folder, {"login": "/login"})
                shoot(browser, address, folder, {"settings": "/settings"}, key)
        finally:
            stack.close()
    print(f"{len(list(folder.rglob('*.png')))} pictures in {folder}/")


def pages_of(stack: Stack) -> dict[str, str]:
    """Run the studies; the address of each page by name."""
    stack.start_worker()
    # DeepSpeed builds an operator for offloading at its first use on a machine, which takes minutes.
    quick = {"space": {"knobs": {"offload_optimizer": "none", "offload_param": "none"}}}
    answered = stack.create(study(budget={"max_trials": 12, "max_pairs": 7}, **quick))
    wide = TINY | {"hidden_size": 256, "intermediate_size": 512}
    little = {"device": "cpu", "gpus_per_node": 2, "memory_gib": 0.03, "host_memory_gib": 1}
    tight = stack.create(study(model=wide, cluster=little, budget={"max_trials": 8, "max_pairs": 7}, **quick))
    for study_id in (answered, tight):
        until(lambda name=study_id: stack.study(name)["state"] != "running", 240, f"{study_id} ends")
    running = stack.create(study(budget={"max_trials": 40}, seed=3, **quick))
    until(lambda: len(stack.trials(running)) > 4, 120, "the third study has trials")
    failed = next((t["number"] for t in stack.trials(tight) if t["failure"]), 0)
    found = stack.study(answered)
    best = found["result"]["best"]["trial_number"] if found["result"] else 0
    return {
        "best": "/",
        "studies": "/studies",
        "study": f"/studies/{answered}",
        "study-little-memory": f"/studies/{tight}",
        "study-running": f"/studies/{running}",
        "trial": f"/studies/{answered}/trials/{best}",
        "trial-not-usable": f"/studies/{tight}/trials/{failed}",
        "export": f"/studies/{answered}/export",
        "compare": f"/compare?pick={answered}:0&pick={answered}:{best or 1}",
        "new": "/new",
        "calculator": "/new?model=llama-2-70b&hardware=H100-SXM5-80GB&size=6&sequence_length=4096",
        "workers": "/workers",
        "error": "/studies/none",
    }


def settings_of(stack: Stack) -> dict[str, str]:
    """Two webhooks that nobody answers, one of them switched off; the address of the other's page."""
    for events in ([], ["study.complete"]):
        spec = {"url": "http://127.0.0.1:9/hook", "events": events}
        made = stack.http.post("/v1/webhooks", json=spec).json()["webhook_id"]
    stack.http.post(f"/v1/webhooks/{made}:test")
    stack.http.post(f"/v1/webhooks/{made}:disable")
    return {"webhook": f"/settings/webhooks/{stack.http.get('/v1/webhooks').json()[0]['webhook_id']}"}


def shoot(browser: Browser, address: str, folder: Path, pages: dict[str, str], key: str = "") -> None:
    """Each page in light and dark, wide and narrow; logged in where there is a key."""
    for scheme in ("light", "dark"):
        for size, (width, height) in WIDTHS.items():
            context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
            page = context.new_page()
            if key:
                page.goto(f"{address}/login")
                page.get_by_label("API key").fill(key)
                page.get_by_role("button", name="Log in").click()
                page.wait_for_url(f"{address}/")
            for name, path in pages.items():
                page.goto(address + path)
                page.wait_for_timeout(150)
                target = folder / f"{scheme}-{size}" / f"{name}.png"
                page.screenshot(path=target, full_page=True)
            context.close()


if __name__ == "__main__":
    main()
