"""Pages put meaning first: the verdict with its reasons and the next step; what is equal or minor is folded."""

import re

import pytest

from shardtune.api_schemas.machines.conditions import Conditions, ProgramLoad
from shardtune.api_schemas.trials.measurements import Measurement
from tests.flow.helpers.retuning_lab import CHANGED
from tests.support.service.page_reader import HTML, page, token
from tests.support.service.scenarios import THREE_BACKENDS, answered_study, create, run_study, tune
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, measurement, on_quiet_machine, speed_of

BASELINE = {"strategy": {"kind": "ddp"}, "micro_batch": 1}
CLANG = Conditions(foreign_cpu_cores=1.5, foreign_programs=(ProgramLoad(name="clang", cores=1.5),))


def busy(_lease, task) -> Measurement:
    """Every run is disturbed by a compiler."""
    return measurement(speed_of(task.config)).model_copy(update={"conditions": CLANG})


def section(text: str, name: str) -> str:
    """The element with an id, up to the end of its section."""
    return text.split(f'id="{name}"', 1)[1].split("</section>")[0]


def sent(text: str) -> tuple[str, dict[str, str]]:
    """Address and hidden fields of the next step's form."""
    form = text.split('class="next"')[1].split("</form>")[0]
    address = re.search(r'action="([^"]+)"', form)
    assert address, form
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
    return address[1], fields


@pytest.mark.answered
def test_a_confirmed_answer_has_its_reasons_and_leads_to_the_export(quick_client):
    study_id = answered_study(quick_client)
    answer = section(page(quick_client, f"/studies/{study_id}"), "answer")
    assert (
        answer.index("Confirmed:")
        < answer.index("Why to trust it")
        < answer.index("Why to doubt it")
        < answer.index("Next")
    )
    assert "Compared in runs directly after each other" in answer.split("Why to doubt it")[0]
    assert f'href="/studies/{study_id}/export"' in answer and f"shardtune export {study_id} --out best" in answer


@pytest.mark.answered
def test_counts_of_runs_stand_only_where_the_page_says_how_it_was_measured(quick_client):
    study_id = answered_study(quick_client)
    answer = section(page(quick_client, f"/studies/{study_id}"), "answer")
    shown, measured = answer.split('<details id="evidence">')
    assert not re.search(r"\d+ (paired |validation |search )?(runs|pairs)\b", shown), shown
    assert shown.count("tokens/s/GPU") == 1, "speeds side by side seem to divide to the gain"
    assert "7 paired runs after the search" in measured and "medians of all runs" in measured
    pair = re.search(
        r"in the middle pair: ([\d,]+) against the baseline.{1,5}s ([\d,]+) tokens/s/GPU, which is ([\d.]+)×", measured
    )
    assert pair, measured
    faster, slower = (float(text.replace(",", "")) for text in pair.groups()[:2])
    assert abs(faster / slower - float(pair[3])) < 0.02


def test_a_busy_answer_leads_to_the_missing_pairs_which_wait_for_quiet(quick_client):
    study, _ = run_study(quick_client, busy, **THREE_BACKENDS, baseline=BASELINE)
    address = f"/studies/{study['study_id']}"
    assert study["result"]["verdict"] == "too_busy"
    text = page(quick_client, address)
    box = section(text, "recommended")
    assert "for now, low confidence" in box and ">recommended<" not in box
    assert page(quick_client, "/").count("too busy</span>") == 1
    extend = f"shardtune studies extend {study['study_id']} --add-pairs"
    assert re.search(rf"{extend} \d+ --wait-for-quiet-s 1800 --service http://127.0.0.1<", text)
    assert "No live worker" not in text
    action, fields = sent(text)
    assert action == f"{address}/extend" and fields["wait_minutes"] == "30"
    quick_client.post(action, data=fields, headers=HTML).raise_for_status()
    extended = quick_client.get(f"/v1{address}").json()
    assert extended["spec"]["wait_for_quiet_s"] == 1800 and extended["state"] == "running"
    assert extended["spec"]["budget"]["max_pairs"] == SPEC["budget"].get("max_pairs", 24) + int(fields["add_pairs"])


def test_a_step_that_starts_runs_says_that_no_worker_is_live(quick_client, clock):
    """The page offered pairs that the service would reject, when the worker of `tune` had ended."""
    study, _ = run_study(quick_client, busy, **THREE_BACKENDS, baseline=BASELINE)
    address = f"/studies/{study['study_id']}"
    clock.turn(3600)
    text = section(page(quick_client, address), "answer")
    assert "No live worker can execute these runs." in text
    assert "shardtune worker --service http://127.0.0.1<" in text
    action, fields = sent(text)
    assert quick_client.post(action, data=fields, headers=HTML).status_code == 422


def test_a_study_is_run_again_on_the_software_that_its_worker_has_now(quick_client, clock):
    """The page said that no live worker could execute the runs, where the button starts them on changed software."""
    worker = SimulatedWorker(quick_client).register()
    study_id = create(quick_client)
    worker.do(worker.lease())
    worker.do(worker.lease())
    quick_client.post(f"/v1/studies/{study_id}:cancel").raise_for_status()
    SimulatedWorker(quick_client, fingerprint=CHANGED).register()
    text = page(quick_client, f"/studies/{study_id}")
    action, fields = sent(text)
    assert action == f"/studies/{study_id}/rerun" and "No live worker" not in text
    again = quick_client.post(action, data=fields, headers=HTML)
    assert quick_client.get(f"/v1{again.url.path}").json()["state"] == "running"
    quick_client.post(f"/v1{again.url.path}:cancel").raise_for_status()
    clock.turn(3600)
    text = page(quick_client, f"/studies/{study_id}")
    assert "No live worker can execute these runs. First start one with the hardware of this study:" in text


def test_a_study_that_is_run_again_keeps_a_longer_wait_for_quiet(quick_client):
    study_id = tune(quick_client, wait_for_quiet_s=7200)
    for minutes, wait_s in ((30, 7200), (180, 10800)):
        form = {"csrf": token(quick_client), "wait_minutes": str(minutes)}
        answer = quick_client.post(f"/studies/{study_id}/rerun", data=form, headers=HTML)
        again = quick_client.get(f"/v1{answer.url.path}").json()
        assert again["spec"]["wait_for_quiet_s"] == wait_s


@pytest.mark.answered
def test_an_extension_without_a_number_is_rejected(quick_client):
    study_id = answered_study(quick_client)
    answer = quick_client.post(f"/studies/{study_id}/extend", data={"csrf": token(quick_client)}, headers=HTML)
    assert answer.status_code == 422 and "give add_trials or add_pairs" in answer.text


def test_who_keeps_the_own_baseline_is_told_to_train_on(quick_client):
    alike = on_quiet_machine(measurement(1000.0))
    study, _ = run_study(quick_client, lambda *_: alike, **THREE_BACKENDS, baseline=BASELINE)
    text = page(quick_client, f"/studies/{study['study_id']}")
    assert "Train on as you do today" in section(text, "answer") and sent(text)[1]["add_trials"] == "10"


def test_what_did_not_work_counts_disturbed_and_repeated_runs(quick_client):
    study, trials = run_study(quick_client, busy, **THREE_BACKENDS)
    setbacks = section(page(quick_client, f"/studies/{study['study_id']}"), "failures")
    disturbed = study["result"]["disturbed_search_runs"]
    repeats = [a for trial in trials for run in trial["runs"] for a in run["attempts"] if a["end"] == "disturbed"]
    assert disturbed and f'warn">{disturbed}</span> search runs counted although disturbed' in setbacks
    assert repeats and f'warn">{len(repeats)}</span> runs discarded and repeated' in setbacks
    validation = [run for trial in trials for run in trial["runs"] if run["purpose"] == "validation"]
    kept = [run for run in validation if run["state"] == "complete" and run["measurement"]["disturbed"]]
    assert kept and f'warn">{len(kept)}</span> validation runs kept although disturbed' in setbacks
    marks = [page(quick_client, f"/studies/{study['study_id']}/trials/{trial['number']}") for trial in trials]
    measured = [run["measurement"] for trial in trials for run in trial["runs"] if run["state"] == "complete"]
    counted = [run for run in measured if run and run["disturbed"]]
    mark = "complete, kept although disturbed: other programs kept"
    assert sum(text.count(mark) for text in marks) == len(counted) > len(kept), "each run says so, and why"
    assert sum(text.count("kept although disturbed (other programs kept") for text in marks) == len(kept)


def test_a_running_study_says_what_just_happened_and_why(quick_client):
    deepspeed = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, "wall_clock_breakdown": True}
    workload = SPEC["workload"] | {"precision": "fp32"}
    worker = SimulatedWorker(quick_client, behave=busy).register()
    study_id = create(quick_client, baseline=deepspeed, workload=workload)
    for _ in range(3):
        worker.do(worker.lease())
    text = section(page(quick_client, f"/studies/{study_id}"), "progress")
    assert "Trial 0 chosen: ZeRO-1, micro batch 1 (your baseline)" in text
    assert "discarded, because it was disturbed; it runs again (other programs kept 1.5" in text
    assert "Your baseline was read as DeepSpeed JSON. It is trial 0." in text
    warnings = quick_client.get(f"/v1/studies/{study_id}").json()["warnings"]
    assert warnings and all(warning[1:40] in text for warning in warnings if "'" not in warning[:40])


@pytest.mark.answered
def test_a_trial_says_what_differs_from_the_default_and_folds_the_rest(quick_client):
    study_id = answered_study(quick_client)
    best = quick_client.get(f"/v1/studies/{study_id}/best").json()["best"]["trial_number"]
    text = (
        page(quick_client, f"/studies/{study_id}/trials/{best}").split('id="configuration"')[1].split("</section>")[0]
    )
    shown, folded = text.split("<details>", 1)
    assert '<strong>4</strong> <span class="muted">instead of 1' in shown and "static graph" not in shown
    assert "All " in folded and "garbage collection" in folded
    assert "This is the documented default" in page(quick_client, f"/studies/{study_id}/trials/0")


@pytest.mark.answered
def test_equal_settings_and_defaults_of_one_backend_are_folded_in_a_comparison(quick_client):
    study_id = answered_study(quick_client)
    text = page(quick_client, f"/compare?pick={study_id}:0&pick={study_id}:1")
    shown, folded = text.split('<details id="equal">')
    assert "ZeRO stage" in shown and "n/a" in shown and "ZeRO stage" not in folded
    assert "contiguous gradients" in folded and "contiguous gradients" not in shown and "sequence length" in folded
    assert "Settings that differ" in shown and "MFU" not in text, "a row without any value says nothing"


def test_a_service_without_an_answer_shows_an_example_that_is_called_one(quick_client):
    text = page(quick_client, "/")
    assert "example, not yours" in text and "These figures are not from your machines" in text
    tune(quick_client)
    assert "example" not in page(quick_client, "/")


@pytest.mark.answered
def test_a_card_names_gain_cost_freshness_and_the_next_step(quick_client):
    study_id = answered_study(quick_client)
    card = page(quick_client, "/").split('<article class="target"')[1].split("</article>")[0]
    for part in ("×</strong>", "GPU time", "fresh</span>", "Train with it", f"/studies/{study_id}/export"):
        assert part in card, part


@pytest.mark.parametrize("path", ["/docs", "/docs/"])
def test_the_navigation_leads_to_documentation_even_where_none_is_built(quick_client, path):
    assert '<a href="/docs/">Docs</a>' in page(quick_client, "/")
    answer = quick_client.get(path)
    assert answer.status_code == 200 and ("make docs" in answer.text or "Shardtune" in answer.text)
