"""The API's own document against a running service, by schemathesis: no 5xx, nothing undocumented, no answer of another shape.

All its checks but `positive_data_acceptance`: rules beyond the schema answer 422, 409 and 412. More of it, also what
its coverage of the schema makes up (seven cases of eight), and on Postgres, with SHARDTUNE_TEST_LONG=1.
"""

import httpx
import pytest

from shardtune.api_schemas.training.models import preset
from tests.flow.helpers.schema_fuzzer import STUDY, WORD, cases_in, fuzzed_service, run_schemathesis
from tests.support.long_run import IS_LONG, WIDE
from tests.support.service.scenarios import bearer, make_key
from tests.support.service.simulated_worker import SimulatedWorker

PHASES = [] if IS_LONG else ["--phases", "examples,fuzzing,stateful"]


@pytest.fixture
def replica(request, tmp_path):
    url = request.getfixturevalue("empty_postgres_url" if IS_LONG else "sqlite_url")
    with fuzzed_service(url, tmp_path / "service.log") as running:
        yield running


def document(replica, is_guarded):
    """The service's own; where it has no keys, what the document says of them does not apply."""
    described = httpx.get(f"{replica.url}/openapi.json", timeout=30, trust_env=False).json()
    if not is_guarded:
        del described["components"]["securitySchemes"]
        for operation in (operation for path in described["paths"].values() for operation in path.values()):
            operation.pop("security", None)
    return described


def fuzz(replica, folder, *options, secret="", **environment):
    """Returns how many cases there were."""
    checks = ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]
    header = ["--header", f"Authorization: Bearer {secret}"] if secret else []
    described = document(replica, is_guarded=bool(secret))
    hooks = "tests.flow.http.fuzz_hooks"
    printed = run_schemathesis(replica, described, folder, hooks, [*checks, *options, *header], **environment)
    assert "Authentication failed" not in printed, printed
    return cases_in(printed)


@pytest.mark.timeout(3600 if IS_LONG else 240)
def test_every_answer_is_one_that_the_document_describes(replica, tmp_path):
    """Check that no response holds a word of the other project."""
    with httpx.Client(base_url=replica.url, timeout=30, trust_env=False) as client:
        client.headers = bearer(make_key(client, "admin"))
        own, other, theirs = (make_key(client, "admin", project=name) for name in ("default", "default", WORD))
        client.headers = bearer(theirs)
        worker = SimulatedWorker(client, name=f"{WORD}-1").register()
        model = {"name": WORD, "config": preset("llama-tiny").config}
        client.post("/v1/studies", json=STUDY | {"model": model}, params={"study_id": WORD}).raise_for_status()
        worker.work()
    cases = fuzz(
        replica,
        tmp_path,
        *PHASES,
        *("--max-examples", "30" if IS_LONG else "6"),
        # Of the operator's keys only; the fuzzer without keys has them.
        *("--exclude-path", "/metrics", "--exclude-operation-id", "put_project_v1_projects__project_id__put"),
        secret=own["secret"],
        FUZZ_OWN_KEY=own["key"]["key_id"],
        FUZZ_OTHER_KEY=other["key"]["key_id"],
        FUZZ_CANARY=WORD,
    )
    assert cases >= (5000 if IS_LONG else 250)


@WIDE
@pytest.mark.timeout(3600)
def test_the_same_holds_without_keys(replica, tmp_path):
    """Making the first key would shut the door on the fuzzer, so that is left out."""
    fuzz(
        replica,
        tmp_path,
        *("--max-examples", "30"),
        *("--exclude-operation-id", "create_key_v1_keys_post"),
    )
