"""Conventions of every route: repeatable POSTs, entity tags, pages, error codes."""

import ast
from pathlib import Path

import pytest

from shardtune.service.http import error_answers, errors
from shardtune.service.http.error_codes import CODES
from tests.support.service.scenarios import in_threads
from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker

CREATE = SPEC | {"cluster": CLUSTER.model_dump()}
SERVICE = Path(__file__).parents[3] / "service"
NAMED = {"Idempotency-Key": "job-4711"}


def studies(client, **params):
    return client.get("/v1/studies", params=params).json()


@pytest.mark.wide_on_postgres
def test_repeated_post_changes_nothing_and_gets_the_first_answer(client):
    SimulatedWorker(client).register()
    first = client.post("/v1/studies", json=CREATE, headers=NAMED)
    client.post(f"/v1/studies/{first.json()['study_id']}:cancel")
    reordered = dict(reversed(CREATE.items()))
    again = client.post("/v1/studies", json=reordered, headers=NAMED)
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    assert len(studies(client)["studies"]) == 1


def test_a_repeated_creation_says_again_where_its_resource_is(quick_client):
    SimulatedWorker(quick_client).register()
    study_id = quick_client.post("/v1/studies", json=CREATE).json()["study_id"]
    schedule = {"name": "nightly", "trigger": "fingerprint"}
    requests = (
        ("/v1/studies", CREATE),
        (f"/v1/studies/{study_id}:clone", {}),
        ("/v1/schedules", schedule),
        ("/v1/best:resolve", {"study": CREATE}),
        (f"/v1/studies/{study_id}:pause", None),
        ("/v1/webhooks", {"url": "https://ci.example.com/hook", "study_id": study_id}),
        ("/v1/webhooks", {"url": "https://ci.example.com/hook"}),
    )
    for number, (path, body) in enumerate(requests):
        first, again = (
            quick_client.post(path, json=body, headers={"Idempotency-Key": f"job-{number}"}) for _ in range(2)
        )
        assert again.headers["idempotency-replayed"] == "true", first.text
        for name in ("location", "etag"):
            assert again.headers.get(name) == first.headers.get(name), (path, name)
        assert ("location" in first.headers) == (number < 4), path


@pytest.mark.wide_on_postgres
def test_other_request_under_the_same_name_is_rejected(client):
    SimulatedWorker(client).register()
    study_id = client.post("/v1/studies", json=CREATE, headers=NAMED).json()["study_id"]
    for url, body in (("/v1/studies", CREATE | {"seed": 1}), (f"/v1/studies/{study_id}:cancel", None)):
        answer = client.post(url, json=body, headers=NAMED)
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")
    assert studies(client)["studies"][0]["state"] == "running"


def test_name_is_free_again_after_a_rejection_and_after_a_day(client, clock):
    assert client.post("/v1/studies", json=CREATE, headers=NAMED).json()["code"] == "no_worker"
    worker = SimulatedWorker(client).register()
    assert client.post("/v1/studies", json=CREATE, headers=NAMED).status_code == 201
    clock.turn(25 * 3600)
    worker.register()
    assert client.post("/v1/studies", json=CREATE | {"seed": 1}, headers=NAMED).status_code == 201


def test_same_request_many_times_at_once_happens_once(client):
    SimulatedWorker(client).register()
    answers = []
    in_threads(lambda _: answers.append(client.post("/v1/studies", json=CREATE, headers=NAMED)), range(8))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.text for answer in answers}) == len(studies(client)["studies"]) == 1


@pytest.mark.parametrize(("path", "body"), [("/v1/studies", CREATE), ("/v1/best:resolve", {"study": CREATE})])
@pytest.mark.wide_on_postgres
def test_a_named_creation_is_answered_as_before_when_its_worker_has_gone(client, clock, path, body):
    SimulatedWorker(client).register()
    first = client.post(path, json=body, headers=NAMED)
    clock.turn(1000)
    assert client.post(path, json=body).json()["code"] == "no_worker"
    again = client.post(path, json=body, headers=NAMED)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    other = client.post(path, json={}, headers=NAMED)
    assert other.json()["code"] == "idempotency_key_reused"
    assert len(studies(client)["studies"]) == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "é"])
def test_bad_idempotency_key_is_named(quick_client, key):
    answer = quick_client.post("/v1/studies", json=CREATE, headers={"Idempotency-Key": key.encode()})
    assert answer.json()["code"] == "invalid_idempotency_key"


@pytest.mark.wide_on_postgres
def test_change_of_something_else_than_was_seen_is_rejected(client):
    SimulatedWorker(client).register()
    path = f"/v1/studies/{client.post('/v1/studies', json=CREATE).json()['study_id']}"
    tag = client.get(path).headers["etag"]
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 304
    assert client.post(f"{path}:pause", headers={"If-Match": tag}).json()["state"] == "paused"
    answer = client.post(f"{path}:cancel", headers={"If-Match": tag})
    assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed")
    present = client.get(path, headers={"If-None-Match": tag})
    assert present.status_code == 200 and present.headers["etag"] != tag
    assert client.post(f"{path}:cancel", headers={"If-Match": present.headers["etag"]}).status_code == 200


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_pages_have_every_study_once_while_more_arrive(client, clock, order):
    SimulatedWorker(client).register()
    names = [f"nightly-{number}" for number in range(5)]
    for name in names:
        # Two of them at the same moment: the id decides.
        clock.turn(1 if name != "nightly-3" else 0)
        client.post("/v1/studies", json=CREATE, params={"study_id": name}).raise_for_status()
    observed, token = [], None
    while True:
        page = studies(client, limit=2, order=order, **({"page_token": token} if token else {}))
        observed += [study["study_id"] for study in page["studies"]]
        if order == "newest":
            clock.turn(1)
            client.post("/v1/studies", json=CREATE)
        if (token := page["next_page_token"]) is None:
            break
    assert observed == (names if order == "oldest" else names[::-1])


def test_filters_of_the_list(quick_client, clock):
    SimulatedWorker(quick_client).register()
    for name in ("first", "second"):
        quick_client.post("/v1/studies", json=CREATE, params={"study_id": name})
        clock.turn(10)
    quick_client.post("/v1/studies/first:pause")
    assert [study["study_id"] for study in studies(quick_client, state="paused")["studies"]] == ["first"]
    assert len(studies(quick_client, state=["paused", "running"])["studies"]) == 2
    moment = "2026-01-01T00:00:05+00:00"
    assert [study["study_id"] for study in studies(quick_client, created_from=moment)["studies"]] == ["second"]
    assert [study["study_id"] for study in studies(quick_client, created_before=moment)["studies"]] == ["first"]


@pytest.mark.parametrize("token", ["x", "e30=", "bnVsbA==", "WzFd", "é", "eyJhdCI6IG51bGwsICJmIjogIngifQ=="])
def test_foreign_page_token_is_rejected(quick_client, token):
    for path in ("/v1/studies", "/v1/workers", "/v1/keys", "/v1/projects"):
        answer = quick_client.get(path, params={"page_token": token})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_page_token")


def test_token_of_other_filters_is_rejected(quick_client):
    SimulatedWorker(quick_client).register()
    for _ in range(2):
        quick_client.post("/v1/studies", json=CREATE)
    token = studies(quick_client, limit=1)["next_page_token"]
    assert studies(quick_client, limit=1, page_token=token, state="running")["code"] == "invalid_page_token"


@pytest.mark.wide_on_postgres
def test_id_of_ones_own_choice(client):
    SimulatedWorker(client).register()
    answer = client.post("/v1/studies", json=CREATE, params={"study_id": "nightly-7b"})
    assert answer.json()["study_id"] == "nightly-7b" and answer.headers["location"] == "/v1/studies/nightly-7b"
    again = client.post("/v1/studies", json=CREATE, params={"study_id": "nightly-7b"})
    assert (again.status_code, again.json()["code"]) == (409, "study_exists")
    for bad in ("../x", "a:cancel", "X", "a", "a" * 33):
        assert client.post("/v1/studies", json=CREATE, params={"study_id": bad}).status_code == 422


# Where each function that makes an error takes its code.
PLACES = {
    **{name: 0 for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.ApiError)},
    "problem": 1,
    "invalid": 3,
}


def codes_in(path):
    """The codes of the errors that a file makes."""
    for call in ast.walk(ast.parse(path.read_text())):
        name = getattr(call.func, "id", getattr(call.func, "attr", "")) if isinstance(call, ast.Call) else ""
        if name in PLACES:
            named = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
            code = next(iter([*named, *call.args[PLACES[name] :]]), ast.Constant("invalid_request"))
            # These hand on what they were given.
            assert isinstance(code, ast.Constant) or path.name in ("errors.py", "error_answers.py"), (path, call.lineno)
            if isinstance(code, ast.Constant):
                yield code.value


def test_every_code_in_the_source_is_registered_and_every_registered_one_is_used():
    used = {code for path in SERVICE.glob("**/*.py") for code in codes_in(path)}
    assert used | set(error_answers._HTTP_CODES.values()) == set(CODES)
