"""Response times of pages with much stored: 1,000 studies, 100,000 trials.

Run: python -m benchmarks.pages [--studies 1000] [--trials 100] [--json]

Rows are made up (nothing is trained), written to a SQLite file of their own in the form the service stores them; the
pages are asked for in process, so the times are those of the server without a network.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

from fastapi.testclient import TestClient

from benchmarks.pages.stored_studies import fill, profile
from shardtune.db.session import Database, upgrade
from shardtune.service.app import create_app
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings

RUNS = 25


def ask(client: TestClient, path: str) -> dict[str, float]:
    """Median and slowest time, median processor time and size of one page."""
    times, processor, size = [], [], 0
    for _ in range(RUNS):
        started, busy = time.perf_counter(), time.process_time()
        answer = client.get(path, headers={"accept": "text/html"})
        times.append(time.perf_counter() - started)
        processor.append(time.process_time() - busy)
        assert answer.status_code == 200, answer.text
        size = len(answer.content)
    return {
        "median_ms": median(times) * 1e3,
        "slowest_ms": max(times) * 1e3,
        "cpu_ms": median(processor) * 1e3,
        "kilobytes": size / 1000,
    }


def main() -> None:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder)}/pages.sqlite3"
        upgrade(url)
        context = Context(Database(url), Settings(database_url=url, sweep_s=3600))
        fill(context.db, options.studies, options.trials)
        study = f"/studies/study-{options.studies // 2:012x}"
        profile(context.db, study.rpartition("/")[2])
        paths = {
            "home": "/",
            "home, filtered and sorted": "/?q=llama+zero&sort=speed&order=desc",
            "home, last page": "/?page=20",
            "studies": "/studies?page=10",
            "study": study,
            "study, sorted and filtered": f"{study}?sort=memory&order=desc&backend=zero",
            "trial": f"{study}/trials/7",
            "why": f"{study}/trials/7/why",
            "calculator": "/new",
        }
        app = create_app(context=context)
        with TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000)) as client:
            page_figures = {name: ask(client, path) for name, path in paths.items()}
            page_figures["static files"] = {
                "kilobytes": sum(len(client.get(f"/static/{n}").content) for n in ("app.css", "app.js")) / 1000
            }
    if options.json:
        print(json.dumps(page_figures))
        return
    for name, figures in page_figures.items():
        print(f"{name:28}" + "  ".join(f"{key} {value:.1f}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
