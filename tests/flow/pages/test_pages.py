"""The pages over the real service in process: they answer, reject, and say what to do."""

import io
import re
import zipfile

import pytest
from fastapi.testclient import TestClient

from shardtune.api_schemas.trials.failures import Failure, FailureKind
from tests.support.service.page_reader import HTML, page, token
from tests.support.service.simulated_worker import FINGERPRINT, SPEC, SimulatedWorker, failure, measurement, speed_of
from tests.support.service.statement_counts import statements_sent


def behave(lease, task):
    """ZeRO-3 runs out of memory, the rest is measured."""
    if task.config.backend == "zero" and task.config.strategy.stage == 3:
        return failure(FailureKind.OOM, "rank 1 ran out of memory")
    return measurement(speed_of(task.config))


STUDY = "tuned"


def studied(client: TestClient) -> None:
    """One study, from its creation to its answer."""
    worker = SimulatedWorker(client, behave=behave).register()
    client.post("/v1/studies", json=SPEC, params={"study_id": STUDY}).raise_for_status()
    worker.work()


@pytest.fixture
def sqlite_start(request, sqlite_template, sqlite_after):
    """Begin with the study where a test names it."""
    return sqlite_after(studied) if "study_id" in request.fixturenames else sqlite_template


@pytest.fixture
def study_id(quick_client) -> str:
    """Study that the service's database begins with."""
    return STUDY


def test_every_page_answers_before_there_is_anything(quick_client):
    assert "Nothing has been tuned yet" in page(quick_client, "/")
    assert "shardtune worker --service http://127.0.0.1" in page(quick_client, "/workers")
    assert "No schedule yet" in page(quick_client, "/schedules")
    for path in ("/studies", "/new", "/compare"):
        page(quick_client, path)
    assert "does not exist" in page(quick_client, "/studies/study-none", 404)
    assert "There is no page" in page(quick_client, "/nothing", 404)
    assert quick_client.get("/nothing").headers["content-type"] == "application/problem+json"


def test_home_says_which_is_best_and_by_how_much(quick_client, study_id):
    worker = SimulatedWorker(quick_client, behave=behave).register()
    spec = SPEC | {"workload": {"sequence_length": 64, "global_batch": 16}}
    quick_client.post("/v1/studies", json=spec).raise_for_status()
    worker.work()
    text = page(quick_client, "/")
    assert text.count("confirmed</span>") == 2 and "fresh</span>" in text and "FSDP2" in text
    assert "batch 16" in page(quick_client, "/?q=llama+cpu&sort=speed&order=asc&device=cpu")
    assert "No answered study matches" in page(quick_client, "/?q=llama+nothing")


def retuned(client: TestClient, study_id: str, speed: float) -> str:
    """The address of the same study once more, on machines of this speed."""
    answer = client.post(f"/studies/{study_id}/rerun", data={"csrf": token(client)}, follow_redirects=False)
    again = answer.headers["location"]
    assert answer.status_code == 303 and again != f"/studies/{study_id}"
    assert study_id in page(client, "/")

    def faster(lease, task):
        outcome = behave(lease, task)
        if isinstance(outcome, Failure):
            return outcome
        return measurement(speed * outcome.tokens_per_s_per_gpu)

    SimulatedWorker(client, behave=faster).register().work()
    return again


def test_home_shows_the_recommendation_and_not_the_newest_answer(quick_client, study_id, clock):
    clock.turn(60)
    slower = retuned(quick_client, study_id, 0.5)
    text = page(quick_client, "/")
    assert study_id in text and slower not in text
    clock.turn(60)
    faster = retuned(quick_client, study_id, 2.0)
    text = page(quick_client, "/")
    assert faster in text and f"/studies/{study_id}" not in text


def test_home_shows_a_pinned_answer_and_mentions_the_proposal(quick_client, study_id, clock):
    recorded = {"csrf": token(quick_client)}
    quick_client.post(f"/studies/{study_id}/recommendation/pin", data=recorded).raise_for_status()
    before = re.search(r'class="big">([^<]+)<', page(quick_client, "/"))
    clock.turn(60)
    newer = retuned(quick_client, study_id, 2.0)
    text = page(quick_client, "/")
    assert before and before[0] in text and f'href="{newer}">A newer answer</a> waits for approval' in text
    quick_client.post(f"{newer}/recommendation/approve", data=recorded).raise_for_status()
    text = page(quick_client, "/")
    assert "waits for approval" not in text and before[0] not in text and newer in text


def test_a_study_says_what_did_not_work_and_filters_by_it(quick_client, study_id):
    text = page(quick_client, f"/studies/{study_id}")
    assert "Confirmed:" in text and "out of memory: rank 1 ran out of memory" in text
    assert 'id="chart-best-so-far"' in text and 'id="chart-speed-memory"' in text
    assert 'id="chart-parallel"' not in text, "8 trials are too few for lines"
    only = page(quick_client, f"/studies/{study_id}?reason=oom&sort=cost&order=desc")
    assert "DDP, micro batch" not in only.partition('id="trial-rows"')[2] and "ZeRO" in only
    assert "No trial matches" in page(quick_client, f"/studies/{study_id}?state=cancelled")


def test_trials_can_be_read_and_compared_and_exported(quick_client, study_id):
    text = page(quick_client, f"/studies/{study_id}/trials/0")
    assert f"shardtune export {study_id} --which 0" in text and 'id="chart-loss"' in text
    assert "There is no trial 99" in page(quick_client, f"/studies/{study_id}/trials/99", 404)
    compared = page(quick_client, f"/compare?pick={study_id}&pick={study_id}:0&pick=nobody")
    assert compared.count('class="differs"') > 1 and "nobody" in compared
    assert "accelerate.yaml" in page(quick_client, f"/studies/{study_id}/export")
    for form in ("training-arguments", "torchtitan", "lightning"):
        shown = page(quick_client, f"/studies/{study_id}/export?form={form}")
        assert "Written for" in shown or "has no" in shown or "cannot" in shown
    archive = quick_client.get(f"/studies/{study_id}/export/all.zip")
    with zipfile.ZipFile(io.BytesIO(archive.content)) as files:
        assert {"standard/launch.sh", "standard/config.json"} <= set(files.namelist()) and files.testzip() is None
    launch = quick_client.get(f"/studies/{study_id}/export/launch.sh")
    assert launch.text.startswith("#!") and "attachment" in launch.headers["content-disposition"]
    page(quick_client, f"/studies/{study_id}/export?which=none", 404)


def test_nothing_changes_without_the_token_of_the_browser(quick_client, study_id):
    SimulatedWorker(quick_client).register()
    waiting = quick_client.post("/v1/studies", json=SPEC).json()["study_id"]
    recorded_token = token(quick_client)
    for data in ({}, {"csrf": "guess"}):
        answer = quick_client.post(f"/studies/{waiting}/cancel", data=data, headers=HTML)
        assert answer.status_code == 403 and "out of date" in answer.text
    assert quick_client.get(f"/v1/studies/{waiting}").json()["state"] == "running"
    for action, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        quick_client.post(f"/studies/{waiting}/{action}", data={"csrf": recorded_token}).raise_for_status()
        assert quick_client.get(f"/v1/studies/{waiting}").json()["state"] == state
    rejected = quick_client.post(f"/studies/{waiting}/resume", data={"csrf": recorded_token}, headers=HTML)
    assert rejected.status_code == 409 and "create a new one" in rejected.text


def test_a_form_makes_a_study_or_says_what_is_wrong(quick_client):
    SimulatedWorker(quick_client).register()
    form = {"csrf": token(quick_client), "model": "llama-tiny", "hardware": "worker:sim", "precision": "fp32"}
    form |= {"sequence_length": "64", "global_batch": "7", "max_trials": "4"}
    wrong = quick_client.post("/new", data=form, headers=HTML)
    assert wrong.status_code == 422 and "global_batch (7)" in wrong.text and 'value="7"' in wrong.text
    custom = quick_client.post("/new", data=form | {"model": "custom", "config": "{"}, headers=HTML)
    assert custom.status_code == 422 and "config is not JSON" in custom.text
    response = quick_client.post("/new", data=form | {"global_batch": "8"}, follow_redirects=False)
    assert response.status_code == 303
    page(quick_client, response.headers["location"])


def test_the_form_keeps_the_weights_beside_lora_in_4_bits(quick_client):
    SimulatedWorker(quick_client, adapters=("lora", "qlora")).register()
    form = {"csrf": token(quick_client), "model": "llama-tiny", "hardware": "worker:sim", "sequence_length": "64"}
    form |= {"global_batch": "8", "lora": "8", "quantization": "nf4"}
    response = quick_client.post("/new", data=form, follow_redirects=False)
    assert response.status_code == 303, response.text
    spec = quick_client.get(response.headers["location"].replace("/studies", "/v1/studies")).json()["spec"]
    assert (spec["workload"]["adapter"]["rank"], spec["workload"]["adapter"]["quantization"]) == (8, "nf4")
    for wrong, says in (({"lora": ""}, "give a LoRA rank"), ({"quantization": "int8"}, "must be &#39;nf4&#39;")):
        rejected = quick_client.post("/new", data=form | wrong, headers=HTML)
        assert rejected.status_code == 422 and says in rejected.text, rejected.text
    text = page(quick_client, "/new?model=llama-3.1-8b&hardware=RTX-4090-24GB&size=0&lora=16&quantization=nf4")
    assert "QLoRA nf4 r=16" in text and '<option value="nf4" selected>' in text


def test_the_calculator_predicts_for_hardware_nobody_has(quick_client):
    text = page(quick_client, "/new?model=llama-2-70b&hardware=H100-SXM-80GB&size=6&sequence_length=4096")
    assert "does not fit" in text and "within the line" in text and "69 billion" in text
    requested = {"model": "llama-2-70b", "cluster": "64xh100", "sequence_length": 4096, "global_batch": 64, "top": 5}
    fastest = quick_client.post("/v1/predictions", json=requested).json()["fastest"]
    badges = re.findall(r"badge[^>]*>\s*(?:<[^>]*>)*\s*((?:may fit|fits|does not fit))", text)
    assert badges[:5] == [prediction["memory"]["verdict"] for prediction in fastest], (
        "one rule for the page, the API and the command line"
    )
    assert "whole number above 0" in page(quick_client, "/new?sequence_length=many")
    answer = quick_client.post(
        "/new/calculate", data={"csrf": token(quick_client), "model": "gpt2", "sequence_length": "1024"}
    )
    assert "124 million" in answer.text
    lengths = page(quick_client, "/new?model=gpt2&sequence_length=1024&lengths=[[64,300],[512,40]]&hardware=h100")
    assert "Lengths and padding" in lengths and 'id="chart-sample-lengths"' in lengths
    assert '<option value="H100-SXM5-80GB" selected>' in lengths, "an alias is the list's own name"


def test_a_study_of_the_form_has_the_limits_and_the_objective_that_were_typed(quick_client):
    SimulatedWorker(quick_client).register()
    form = {"csrf": token(quick_client), "model": "llama-tiny", "hardware": "worker:sim", "sequence_length": "64"}
    form |= {"global_batch": "8", "memory_headroom": "20", "backends": ["ddp", "fsdp2"], "compile": "no"}
    form |= {"knobs": '{"micro_batch": [1, 2], "bucket_cap_mb": {"max": 100}}', "max_pairs": "9", "wait_hours": "2"}
    response = quick_client.post("/new", data=form, follow_redirects=False)
    assert response.status_code == 303, response.text
    spec = quick_client.get(response.headers["location"].replace("/studies", "/v1/studies")).json()["spec"]
    assert spec["objective"]["memory_headroom"] == 0.2 and spec["budget"]["max_pairs"] == 9
    assert spec["space"]["backends"] == ["ddp", "fsdp2"] and spec["space"]["allow_compile"] is False
    assert spec["space"]["knobs"] == {"micro_batch": [1, 2], "bucket_cap_mb": {"min": None, "max": 100}}
    assert spec["wait_for_worker_s"] == 7200
    plain = {name: form[name] for name in ("csrf", "model", "hardware", "sequence_length", "global_batch")}
    rejected = quick_client.post("/new", data=plain | {"max_pairs": "6"}, headers=HTML)
    assert rejected.status_code == 422 and "must be at least 7" in rejected.text and "<details open>" in rejected.text
    for wrong, says in (({"knobs": '{"bucket": 1}'}, "did you mean"), ({"memory_headroom": "95"}, "such as 5")):
        rejected = quick_client.post("/new", data=form | wrong, headers=HTML)
        assert rejected.status_code == 422 and says in rejected.text and "<details open>" in rejected.text


def test_what_the_form_keeps_free_is_what_the_calculator_leaves(quick_client):
    text = page(quick_client, "/new?model=gpt2&hardware=A100-SXM-80GB&sequence_length=1024&memory_headroom=50")
    assert "less the 50 % the study keeps free" in text


def test_quotas_are_shown_and_told(quick_client, study_id):
    with statements_sent(quick_client) as sent:
        assert "studies running" not in page(quick_client, "/new"), "nothing is limited"
    assert sent and not [text for text in sent if "sum(" in text], "so nothing is added up"
    limits = {"quotas": {"running_studies": 3, "gpu_seconds_per_day": 1.0, "requests_per_minute": 1000}}
    quick_client.put("/v1/projects/default", json=limits).raise_for_status()
    spent = quick_client.get(f"/v1/studies/{study_id}").json()["gpu_seconds"]
    assert spent > 1
    settings = page(quick_client, "/settings").partition('id="projects"')[2]
    assert "0 of 3 studies" in settings and "used up" in settings and "1,000" in settings
    assert "Project default: 0 of 3 studies running; " in page(quick_client, "/new")


def test_the_calculator_says_which_precision_the_hardware_has(quick_client):
    with_a100 = page(quick_client, "/new?model=gpt2&hardware=A100-SXM-80GB&sequence_length=1024")
    assert "precision (auto): bf16-mixed" in with_a100 and "<option selected>auto" in with_a100
    stated = page(quick_client, "/new?model=gpt2&hardware=V100-SXM2-16GB&sequence_length=1024&precision=bf16-mixed")
    assert "V100-SXM2-16GB only emulates bfloat16; state fp16-mixed or fp32" in stated
    emulating = FINGERPRINT.model_copy(update={"native_dtypes": "float32"})
    SimulatedWorker(quick_client, fingerprint=emulating).register()
    assert "precision (auto): fp32, because simulated only emulates" in page(quick_client, "/new?hardware=worker:sim")


def test_the_stream_tells_of_the_end_once(quick_client, study_id):
    with quick_client.stream("GET", f"/studies/{study_id}/live") as stream:
        text = "".join(stream.iter_text())
    assert text.count("event: changed") == 1 and text.count("event: ended") == 1
    match = re.search(r"id: (\S+)", text)
    assert match
    with quick_client.stream("GET", f"/studies/{study_id}/live", headers={"last-event-id": match[1]}) as stream:
        assert "event: changed" not in "".join(stream.iter_text())


def test_an_answer_is_pinned_rejected_and_rolled_back_to(quick_client, study_id):
    recorded = {"csrf": token(quick_client)}
    decide = f"/studies/{study_id}/recommendation"
    assert "<h2>Recommendation" in page(quick_client, f"/studies/{study_id}") and ">Pin<" in page(quick_client, "/")
    assert "pinned</span>" in quick_client.post(f"{decide}/pin", data=recorded, headers=HTML).text
    assert ">Unpin<" in page(quick_client, "/") and "pinned</span>" in page(quick_client, "/")
    again = quick_client.post(f"/studies/{study_id}/rerun", data=recorded, follow_redirects=False).headers["location"]
    SimulatedWorker(quick_client, behave=behave).register().work()
    assert "Approve" in page(quick_client, again), "what is pinned stays until somebody approves another"
    approved = quick_client.post(f"{again}/recommendation/approve", data=recorded, headers=HTML).text
    assert "recommended</span>" in approved
    assert "Roll back to this" in page(quick_client, f"/studies/{study_id}")
    back = quick_client.post(f"{decide}/rollback", data=recorded, headers=HTML).text
    assert "recommended</span>" in back and "rolled back to, by local" in back
    assert quick_client.post(f"{decide}/nonsense", data=recorded, headers=HTML).status_code == 404
    assert quick_client.post(f"{decide}/pin", headers=HTML).status_code == 403


def test_a_study_of_a_project_is_run_again_in_its_project(quick_client):
    quick_client.put("/v1/projects/team-a", json={}).raise_for_status()
    SimulatedWorker(quick_client).register()
    first = quick_client.post("/v1/studies", params={"project": "team-a"}, json=SPEC).json()["study_id"]
    recorded = {"csrf": token(quick_client)}
    again = quick_client.post(f"/studies/{first}/rerun", data=recorded, follow_redirects=False).headers["location"]
    assert quick_client.get(f"/v1{again}").json()["project_id"] == "team-a"


def test_schedules_are_made_and_run_by_form(quick_client, study_id):
    form = {"csrf": token(quick_client), "name": "nightly", "cron": "61 2 * * *", "timezone": "Europe/Berlin"}
    rejected = quick_client.post("/schedules", data=form, headers=HTML)
    assert rejected.status_code == 422 and "cannot be read: bad minute" in rejected.text
    assert 'value="61 2 * * *"' in rejected.text
    form |= {"cron": "30 2 * * *", "planned_gpu_hours": "5", "likely_gain": "3"}
    assert quick_client.post("/schedules", data=form, headers=HTML, follow_redirects=False).status_code == 303
    shown = page(quick_client, "/schedules")
    assert (
        "At 02:30 every day (Europe/Berlin)" in shown
        and "Thursday 1 January 2026, 02:30 CET (01:30 UTC), in 1 h 30 min" in shown
    )
    assert "for a training run of 5 GPU-hours, worth it from an expected gain of 3.0 %" in shown
    (schedule,) = quick_client.get("/v1/schedules").json()["schedules"]
    path = f"/schedules/{schedule['schedule_id']}"
    quick_client.post(f"{path}/run", data=form, headers=HTML)
    shown = page(quick_client, "/schedules")
    assert (
        "(2026-01-01 00:00:00 UTC)</span> by hand: requested 1 retune" in shown
        and "requested by hand" in shown
        and ">queued<" in shown
    )
    quick_client.post(f"{path}/delete", data=form, headers=HTML)
    assert "its schedule was deleted" in page(quick_client, "/schedules")


def test_the_api_s_document_is_a_page_that_loads_nothing_from_elsewhere(quick_client):
    shown = page(quick_client, "/api")
    for path, methods in quick_client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}</code>" in shown
    assert "workers:lease" in shown and "StudyRequest" in shown
    assert quick_client.get("/redoc").status_code == 404
