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
            stack.start_service()
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                address = str(stack.http.base_url).rstrip("/")
                shoot(browser, address, folder, {"empty-best": "/", "empty-workers": "/workers"})
                shoot(browser, address, folder, pages_of(stack))
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
        "settings": "/settings",
        "login": "/login",
        "error": "/studies/none",
    }


def shoot(browser: Browser, address: str, folder: Path, pages: dict[str, str]) -> None:
    """Each page in light and dark, wide and narrow."""
    for scheme in ("light", "dark"):
        for size, (width, height) in WIDTHS.items():
            context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
            page = context.new_page()
            for name, path in pages.items():
                page.goto(address + path)
                page.wait_for_timeout(150)
                target = folder / f"{scheme}-{size}" / f"{name}.png"
                page.screenshot(path=target, full_page=True)
            context.close()


if __name__ == "__main__":
    main()
