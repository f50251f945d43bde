"""Every page and form against a running service, by schemathesis: an answer for a person, soon, and of the own project alone.

The document is made from the pages' own routes. More of it, and on Postgres, with SHARDTUNE_TEST_LONG=1.
"""

import httpx
import pytest

from shardtune.api_schemas.training.models import preset
from shardtune.service.app import create_app
from shardtune.service.settings import Settings
from tests.flow.helpers.page_document import page_document
from tests.flow.helpers.schema_fuzzer import STUDY, WORD, cases_in, fuzzed_service, run_schemathesis
from tests.support.long_run import IS_LONG
from tests.support.service.page_reader import log_in
from tests.support.service.scenarios import bearer, make_key
from tests.support.service.simulated_worker import SimulatedWorker

PHASES = [] if IS_LONG else ["--phases", "examples,fuzzing"]
LONGEST_S = 60
"""Seconds of an answer. The calculator's first search for hardware on which nothing surely fits takes twelve of a busy core."""


@pytest.fixture
def replica(request, tmp_path):
    url = request.getfixturevalue("empty_postgres_url" if IS_LONG else "sqlite_url")
    with fuzzed_service(url, tmp_path / "service.log") as running:
        yield running


@pytest.mark.timeout(3600 if IS_LONG else 240)
def test_every_page_and_form_answers_a_person(replica, tmp_path):
    with httpx.Client(base_url=replica.url, timeout=30, trust_env=False) as client:
        client.headers = bearer(make_key(client, "admin"))
        own, other, theirs = (make_key(client, "admin", project=name) for name in ("default", "default", WORD))
        workers = [worker["worker_id"] for worker in client.get("/v1/workers").json()["workers"]]
        client.headers = bearer(theirs)
        worker = SimulatedWorker(client, name=f"{WORD}-1").register()
        model = {"name": WORD, "config": preset("llama-tiny").config}
        client.post("/v1/studies", json=STUDY | {"model": model}, params={"study_id": WORD}).raise_for_status()
        worker.work()
    with httpx.Client(base_url=replica.url, timeout=30, trust_env=False) as browser:
        csrf = log_in(browser, own["secret"])["csrf"]
        cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    values = {
        "study_id": ["finished", "open"],
        "study_id delete": ["spare"],
        "study_id cancel": ["spare"],
        "number": [0, 1, 2],
        "rank": [0],
        "key_id": [other["key"]["key_id"]],
        "worker_id": workers,
        "worker_id forget": ["nothing"],
        "action": ["approve", "reject", "pin", "rollback"],
    }
    document = page_document(create_app(Settings(), migrate=False), csrf, values)
    # It would end the session.
    del document["paths"]["/logout"]
    assert len(document["paths"]) >= 40
    checks = "not_a_server_error,a_page_for_a_person,nothing_of_the_other_project"
    printed = run_schemathesis(
        replica,
        document,
        tmp_path,
        "tests.flow.pages.page_fuzz_hooks",
        [
            *PHASES,
            *("--checks", checks, "--max-response-time", str(LONGEST_S)),
            *("--max-examples", "100" if IS_LONG else "3"),
            *("--header", "Accept: text/html", "--header", f"Cookie: {cookies}"),
        ],
        FUZZ_CANARY=WORD,
    )
    assert cases_in(printed) >= (5000 if IS_LONG else 120)
    answer = httpx.get(f"{replica.url}/studies", headers={"Accept": "text/html", "Cookie": cookies}, trust_env=False)
    assert answer.status_code == 200, "the session did not last to the end"
