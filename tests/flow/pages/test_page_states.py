"""The pages say what a study, a retune and a failure came to: a sentence per state, the same on every page."""

from collections import Counter

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.db.tables.webhooks import DeliveryRow, WebhookRow
from shardtune.service.wording import disambiguate
from tests.flow.helpers.retuning_lab import CHANGED, Lab
from tests.support.service.page_reader import page
from tests.support.service.scenarios import THREE_BACKENDS, best, run_study
from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker, measurement, speed_of


def test_a_retune_that_kept_its_incumbent_says_so_alike_on_every_page(quick_client):
    lab = Lab(quick_client)
    first = lab.tune()
    before, lab.fingerprint = best(quick_client), CHANGED
    spec = {"name": "upgrades", "trigger": "fingerprint"}
    quick_client.post("/v1/schedules", json=spec).raise_for_status()
    actual, _ = lab.retune()
    assert actual["outcome"] == "kept"
    challenge, why = actual["challenge_study_id"], actual["reason"]
    speedup = f"{before['speedup']['value']:.2f}×"
    home = page(quick_client, "/")
    assert speedup in home and "re-measured and kept" in home and ">confirmed</a>" in home
    shown = page(quick_client, f"/studies/{challenge}")
    assert f"Kept: {why}." in shown and ">challenge</span>" in shown and first in shown
    assert "hardware or software changed: kernel (schedule upgrades)" in shown
    assert f"Kept: {why}." in page(quick_client, "/studies")
    schedules = page(quick_client, "/schedules")
    assert why in schedules and schedules.count("hardware or software changed: kernel") >= 2
    old = page(quick_client, f"/studies/{first}")
    assert "Measured again and kept" in old and f"/studies/{challenge}" in old and "measured again since</span>" in old
    for text in (old, shown):
        over_time = text.partition('id="chart-case-speed"')[2].partition("</figure>")[0]
        assert f"/studies/{first}" in over_time and f"/studies/{challenge}" in over_time and "whisker" in over_time


def test_a_stale_answer_says_that_it_is_being_measured_again(quick_client):
    lab = Lab(quick_client)
    lab.tune()
    lab.fingerprint = CHANGED
    SimulatedWorker(quick_client, fingerprint=CHANGED).register()
    lab.ask()
    lab.step()
    text = page(quick_client, "/")
    assert "being measured again</a>" in text and ">challenge</span>" in text and "kernel" in text


def test_a_cancelled_study_counts_against_its_own_budget(quick_client):
    worker = SimulatedWorker(quick_client).register()
    study_id = quick_client.post("/v1/studies", json=SPEC).json()["study_id"]
    for _ in range(3):
        worker.do(worker.lease())
    worker.lease()
    quick_client.post(f"/v1/studies/{study_id}:cancel").raise_for_status()
    text = page(quick_client, f"/studies/{study_id}")
    assert "2 of 8, 1 cancelled" in text and "1 trial was cancelled with the study" in text


def test_where_nothing_fits_no_trial_was_run_and_more_would_not_help(quick_client):
    tiny = CLUSTER.model_copy(update={"memory_gib": 0.001, "host_memory_gib": 0.002})
    study, _ = run_study(quick_client, lambda *_: measurement(1.0), cluster=tiny)
    text = page(quick_client, f"/studies/{study['study_id']}")
    assert f"rejected all {study['rejected']}, so that no trial was run" in text and "MiB" in text
    assert "0.97 MiB are available; use more" in text and "Extend search" not in text and "has been tried" not in text


def test_trials_that_read_alike_are_named_by_the_knob_in_which_they_differ():
    configs = [
        TrialConfig.model_validate({"strategy": {"kind": "ddp", "static_graph": graph}, "micro_batch": size})
        for graph, size in ((True, 2), (False, 2), (False, 4))
    ]
    reported = ["DDP, micro batch 2 (static graph yes)", "DDP, micro batch 2 (static graph no)", "DDP, micro batch 4"]
    assert disambiguate.distinct_descriptions(configs) == reported


def test_a_short_search_is_called_short(quick_client):
    worker = SimulatedWorker(quick_client, behave=lambda _lease, task: measurement(speed_of(task.config))).register()
    inputs = {"strategy": {"kind": "fsdp2", "dp_shard": 2}, "micro_batch": 4}
    study_id = quick_client.post("/v1/studies", json=SPEC | {"baseline": inputs}).json()["study_id"]
    worker.work()
    assert "A short search:" in page(quick_client, f"/studies/{study_id}")


def test_what_was_tried_before_a_webhook_was_disabled_keeps_its_error(quick_client):
    hook, url = "hook", "http://127.0.0.1:9/hook"
    context = quick_client.app.state.context
    with context.db.write() as session:
        now = context.now()
        session.add(WebhookRow(id=hook, url=url, events=[], is_enabled=True, secret_version=1, created_at=now))
        session.flush()
        row = {"webhook_id": hook, "type": "study.complete", "body": "{}", "state": "waiting", "tries": 2}
        session.add(DeliveryRow(id="one", error="connection refused", created_at=now, next_at=now, **row))
    quick_client.post(f"/v1/webhooks/{hook}:disable").raise_for_status()
    text = page(quick_client, f"/settings/webhooks/{hook}?state=failed")
    assert "connection refused; given up: the webhook was disabled" in text
    assert "None is delivered" in page(quick_client, f"/settings/webhooks/{hook}?state=delivered")


def test_an_undecided_answer_is_called_so_on_the_home_page(quick_client):
    def behave(lease, task):
        """Every third validation run of a challenger is slow, and the baseline always the same."""
        runs[lease.trial_number] += 1
        if runs[lease.trial_number] == 1 or task.config.micro_batch == 1:
            return measurement(speed_of(task.config))
        return measurement(500.0 if runs[lease.trial_number] % 3 == 1 else 2000.0)

    runs = Counter()
    study, _ = run_study(quick_client, behave, **THREE_BACKENDS, budget={"max_trials": 8, "max_pairs": 7})
    assert study["result"]["verdict"] == "undecided"
    home = page(quick_client, "/")
    assert ">undecided</span>" in home and "baseline kept" not in home


def test_while_validation_runs_decide_the_fastest_of_the_search_is_not_called_the_best(quick_client):
    worker = SimulatedWorker(quick_client).register()
    study_id = quick_client.post("/v1/studies", json=SPEC).json()["study_id"]
    while quick_client.get(f"/v1/studies/{study_id}").json()["phase"] != "final_comparison":
        assert "Fastest of the search" not in page(quick_client, f"/studies/{study_id}")
        worker.do(worker.lease())
    shown = page(quick_client, f"/studies/{study_id}")
    assert (
        "Fastest of the search" in shown and "validation runs decide now" in shown and "Best so far</span>" not in shown
    )
    assert "fastest of the search" in page(quick_client, "/")
