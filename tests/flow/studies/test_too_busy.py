"""A study whose verdict would rest on disturbed runs says that the machine was too busy, and how long runs may wait."""

import random

import pytest

from shardtune.api_schemas.machines.conditions import Conditions, ProgramLoad
from shardtune.api_schemas.recommendations.best import BestConfig, ConfidenceLevel
from shardtune.api_schemas.studies.budget import MOST_PAIRS
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.api_schemas.studies.verdicts import BusyMachine
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import Memory
from shardtune.db.queries.best import get_target
from shardtune.service.best.busy_answers import reject_too_busy
from shardtune.service.canaries.reference import reference_of
from shardtune.service.http.errors import Conflict
from shardtune.tuner.verdict.disturbance import MAX_DISCARDED_IN_A_ROW
from tests.support.service.scenarios import ASK, THREE_BACKENDS, create
from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker, measurement, speed_of

BASELINE = {"strategy": {"kind": "ddp"}, "micro_batch": 1}
OWN_BASELINE = {**THREE_BACKENDS, "baseline": BASELINE}
CLANG = (ProgramLoad(name="clang", cores=0.9), ProgramLoad(name="chrome", cores=0.4))


def beside(load):
    """Runs beside other programs that take `load()` cores."""

    def behave(lease, task):
        foreign = load()
        run = measurement(speed_of(task.config) * (2 - foreign) / 2)
        conditions = Conditions(foreign_cpu_cores=foreign, foreign_programs=CLANG if foreign > 0.3 else ())
        return run.model_copy(update={"conditions": conditions})

    return behave


def bursts(seed=1):
    draw = random.Random(seed)
    return beside(lambda: draw.choice((0.5, 1.0, 1.5)))


FEW = SPEC["budget"] | {"max_trials": 4, "max_pairs": 12}
"""Half of the pairs and of the trials, where the verdict alone counts."""
BUSY_STUDY = "busy"


def studied(client, behave, **changes):
    worker = SimulatedWorker(client, behave=behave).register()
    study_id = create(client, **{**OWN_BASELINE, "budget": FEW, **changes})
    worker.work(400)
    study = client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "complete", study["reason"]
    return worker, study


def made_too_busy(client):
    """Make the study that most rules here are about."""
    worker = SimulatedWorker(client, behave=bursts()).register()
    spec = SPEC | OWN_BASELINE | {"budget": FEW}
    client.post("/v1/studies", json=spec, params={"study_id": BUSY_STUDY}).raise_for_status()
    worker.work(400)


@pytest.fixture
def sqlite_start(request, sqlite_template, sqlite_after):
    """Begin with the study where a test names it."""
    return sqlite_after(made_too_busy) if "busy_study" in request.fixturenames else sqlite_template


@pytest.fixture
def busy_study(quick_client):
    """Study that the service's database begins with, as the service tells it."""
    return quick_client.get(f"/v1/studies/{BUSY_STUDY}").json()


@pytest.mark.wide_on_postgres
@pytest.mark.parametrize("repeat_disturbed", [0, 0.5])
def test_bursts_of_other_programs_end_in_too_busy_with_their_names_and_the_missing_runs(client, repeat_disturbed):
    budget = {"max_trials": 4, "repeat_disturbed": repeat_disturbed}
    _, study = studied(client, bursts(), budget=budget)
    result = study["result"]
    assert (result["verdict"], result["undecided"]) == ("too_busy", None)
    assert result["best"] == result["baseline"], "a user's baseline is kept"
    busy = result["too_busy"]
    assert busy["rests_on"] == "pairs" and busy["disturbed_runs"] == busy["runs"] > 2 * busy["uneven_pairs"] - 1
    assert busy["programs"] == [{"name": "clang", "cores": 0.9}, {"name": "chrome", "cores": 0.4}]
    assert busy["foreign_cpu_cores"] in (0.5, 0.75, 1.0, 1.25, 1.5)
    even_pairs = busy["runs"] // 2 - busy["uneven_pairs"]
    assert busy["uneven_pairs"] == 12, "half of the 24 pairs that the budget allows"
    assert even_pairs == result["final_comparison"]["pairs"] and busy["missing_runs"] == 2 * max(1, 7 - even_pairs)
    trials = client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    repeats = [
        a["end"] for trial in trials for run in trial["runs"] for a in run["attempts"] if a["end"] == "disturbed"
    ]
    assert bool(repeats) == (repeat_disturbed > 0)


@pytest.mark.wide_on_postgres
def test_pairs_under_steady_equal_load_need_one_on_a_quiet_machine_and_lower_the_confidence(client):
    worker, study = studied(client, beside(lambda: 1.0))
    result = study["result"]
    assert result["verdict"] == "too_busy" and result["final_comparison"]["uneven_pairs"] == 0
    trials = client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    ends = [attempt["end"] for trial in trials for run in trial["runs"] for attempt in run["attempts"]]
    assert ends.count("disturbed") == MAX_DISCARDED_IN_A_ROW, "a load that stays is met again by every repeat"
    # The pairs have decided the test, but only an undisturbed one can confirm: the advised pair has to run.
    assert (result["final_comparison"]["pairs"], result["too_busy"]["missing_runs"]) == (7, 2)
    worker.behave = beside(lambda: 0.0)
    client.post(f"/v1/studies/{study['study_id']}:extend", json={"add_pairs": 1}).raise_for_status()
    worker.work(400)
    extended = client.get(f"/v1/studies/{study['study_id']}").json()["result"]
    assert (extended["verdict"], extended["final_comparison"]["pairs"]) == ("confirmed", 8)


def test_a_run_over_the_memory_limit_shows_no_quiet_machine(quick_client):
    """It has a measurement, but nobody judged its load: the count of discarded runs began anew with it."""
    busy = beside(lambda: 1.0)

    def behave(lease, task):
        run = busy(lease, task)
        is_too_large = lease.trial_number == 2
        return run.model_copy(update={"memory": Memory(peak_allocated_gib=9.0)}) if is_too_large else run

    _, study = studied(quick_client, behave)
    trials = quick_client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    ends = [attempt["end"] for trial in trials for run in trial["runs"] for attempt in run["attempts"]]
    assert "over_limit" in ends and ends.count("disturbed") == MAX_DISCARDED_IN_A_ROW


def test_an_added_pair_that_is_disturbed_too_leaves_the_machine_too_busy(quick_client):
    worker, study = studied(quick_client, beside(lambda: 1.0))
    quick_client.post(f"/v1/studies/{study['study_id']}:extend", json={"add_pairs": 2}).raise_for_status()
    worker.work(400)
    result = quick_client.get(f"/v1/studies/{study['study_id']}").json()["result"]
    assert (result["verdict"], result["final_comparison"]["pairs"]) == ("too_busy", 9)


def test_a_burst_in_an_extension_is_repeated_although_the_load_was_steady_before(quick_client):
    worker, study = studied(quick_client, beside(lambda: 1.0))
    loads = iter([1.0])
    worker.behave = beside(lambda: next(loads, 0.0))
    quick_client.post(f"/v1/studies/{study['study_id']}:extend", json={"add_pairs": 1}).raise_for_status()
    worker.work(400)
    result = quick_client.get(f"/v1/studies/{study['study_id']}").json()["result"]
    compared = result["final_comparison"]
    assert (result["verdict"], compared["pairs"], compared["uneven_pairs"]) == ("confirmed", 8, 0)


def test_pairs_that_are_added_while_others_run_are_run_too(quick_client):
    worker, study = studied(quick_client, beside(lambda: 1.0))
    for pairs in (1, 2):
        quick_client.post(f"/v1/studies/{study['study_id']}:extend", json={"add_pairs": pairs}).raise_for_status()
    worker.work(400)
    result = quick_client.get(f"/v1/studies/{study['study_id']}").json()["result"]
    assert (result["verdict"], result["final_comparison"]["pairs"]) == ("too_busy", 10)


@pytest.mark.wide_on_postgres
def test_a_gain_with_most_pairs_under_steady_equal_load_has_less_confidence(client):
    loads = iter([0.0] * 20)
    _, study = studied(client, beside(lambda: next(loads, 1.0)))
    result = study["result"]
    assert (result["verdict"], result["too_busy"]) == ("confirmed", None)
    assert result["final_comparison"]["disturbed_runs"] > 0
    confidence = client.get("/v1/best", params=ASK).json()["confidence"]
    assert confidence["level"] == "medium" and "disturbed" in confidence["reasons"][0]


def test_more_pairs_on_a_quiet_machine_turn_too_busy_into_a_verdict(quick_client, busy_study):
    missing_pairs = 7 + busy_study["result"]["too_busy"]["missing_runs"] // 2
    worker = SimulatedWorker(quick_client, behave=beside(lambda: 0.0)).register()
    more = {"add_pairs": missing_pairs, "wait_for_quiet_s": 600}
    extended = quick_client.post(f"/v1/studies/{busy_study['study_id']}:extend", json=more).json()
    assert extended["spec"]["wait_for_quiet_s"] == 600
    worker.work(400)
    result = quick_client.get(f"/v1/studies/{busy_study['study_id']}/best").json()
    assert (result["verdict"], result["too_busy"]) == ("confirmed", None)
    best = quick_client.get("/v1/best", params=ASK).json()
    assert best["study_id"] == busy_study["study_id"] and best["verdict"] == "confirmed"


@pytest.mark.wide_on_postgres
def test_a_search_on_a_busy_machine_does_not_claim_that_nothing_is_faster(client):
    """The machine gets quiet for the final comparison, whose candidates a disturbed search chose."""
    draw = random.Random(3)

    def behave(lease, task):
        searched.append(lease.trial_number)
        foreign = draw.choice((0.4, 1.1, 1.6)) if len(searched) <= 8 else 0.0
        run = measurement(1000.0 if foreign == 0 else 1000.0 - foreign)
        return run.model_copy(update={"conditions": Conditions(foreign_cpu_cores=foreign)})

    searched = []
    _, study = studied(client, behave, budget=SPEC["budget"] | {"repeat_disturbed": 0})
    busy = study["result"]["too_busy"]
    assert study["result"]["verdict"] == "too_busy" and busy["rests_on"] == "search"
    assert busy["disturbed_runs"] == busy["runs"] == 8 == busy["missing_runs"]


@pytest.mark.wide_on_postgres
def test_too_busy_is_served_only_to_those_who_accept_low_confidence(client):
    _, study = studied(client, bursts())
    low = {"lowest_confidence": "low"}
    for match in ("nearest", "exact"):
        rejected = client.get("/v1/best", params=ASK | {"match": match})
        assert (rejected.status_code, rejected.json()["code"]) == (409, "too_busy")
        assert study["study_id"] in rejected.json()["detail"] and "lowest_confidence=low" in rejected.json()["detail"]
    best = client.get("/v1/best", params=ASK | low).json()
    assert (best["verdict"], best["confidence"]["level"]) == ("too_busy", "low")
    assert "clang on 0.9 cores" in best["confidence"]["reasons"][0] and best["too_busy"]["disturbed_runs"] > 0
    by_key = {"target_key": best["target_key"]}
    assert client.get("/v1/best", params=by_key).json()["code"] == "too_busy"
    assert client.get("/v1/best", params=by_key | low).status_code == 200
    launch = client.get("/v1/best", params=ASK | low | {"format": "launch.sh"}).text
    assert "(verdict too_busy: no candidate is shown to be faster on a quiet machine)" in launch
    near = ASK | {"workload": '{"sequence_length": 64, "global_batch": 16}'}
    assert client.get("/v1/best", params=near).json()["code"] == "unknown_best"
    for batch, status in ((8, 200), (16, 200)):
        given = near | low | {"workload": f'{{"sequence_length": 64, "global_batch": {batch}}}'}
        assert client.get("/v1/best", params=given).status_code == status


def remedy_of(client):
    rejected = client.get("/v1/best", params=ASK)
    assert (rejected.status_code, rejected.json()["code"]) == (409, "too_busy")
    return rejected.json()["detail"]


def extend_and_cancel(client, url):
    client.post(f"{url}:extend", json={"add_trials": 2}).raise_for_status()
    client.post(f"{url}:cancel").raise_for_status()


def use_up_pairs(client, url):
    most = client.get(url).json()["spec"]["budget"]["max_pairs"]
    client.post(f"{url}:extend", json={"add_pairs": MOST_PAIRS - most}).raise_for_status()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (extend_and_cancel, "study_ended"),
        (lambda client, url: client.delete(url).raise_for_status(), "study_deleted"),
        (use_up_pairs, "invalid_request"),
    ],
    ids=["cancelled", "deleted", "no pair left"],
)
def test_where_no_pair_can_be_added_the_remedy_is_another_study(quick_client, busy_study, change, code):
    SimulatedWorker(quick_client).register()
    assert "(add_pairs, wait_for_quiet_s)" in remedy_of(quick_client)
    url = f"/v1/studies/{busy_study['study_id']}"
    change(quick_client, url)
    assert "(:clone, wait_for_quiet_s)" in remedy_of(quick_client)
    assert quick_client.post(f"{url}:extend", json={"add_pairs": 1}).json()["code"] == code
    cloned = quick_client.post(f"{url}:clone", json={"wait_for_quiet_s": 600})
    assert cloned.status_code == 201, cloned.text


def test_the_remedy_for_a_disturbed_search_is_no_pair(context):
    busy = BusyMachine(rests_on="search", runs=8, disturbed_runs=8, uneven_pairs=0, missing_runs=8)
    answer = BestConfig.model_construct(study_id="s", verdict=Verdict.TOO_BUSY, too_busy=busy)
    with pytest.raises(Conflict, match=r"quiet machine .*:clone, wait_for_quiet_s"):
        reject_too_busy(context, answer, ConfidenceLevel.MEDIUM)


def test_resolving_does_not_start_one_study_after_the_other_on_a_busy_machine(quick_client, busy_study):
    asked = {"study": SPEC | {"cluster": CLUSTER.model_dump()}}
    for _ in range(2):
        rejected = quick_client.post("/v1/best:resolve", json=asked)
        assert (rejected.status_code, rejected.json()["code"]) == (409, "too_busy")
    answer = quick_client.post("/v1/best:resolve", json=asked | {"lowest_confidence": "low"})
    assert (answer.status_code, answer.json()["best"]["verdict"]) == (200, "too_busy")
    assert len(quick_client.get("/v1/studies").json()["studies"]) == 1


def test_too_busy_replaces_no_other_studys_answer_and_is_replaced_by_any(quick_client, busy_study):
    _, clear = studied(quick_client, beside(lambda: 0.0))
    assert quick_client.get("/v1/best", params=ASK).json()["study_id"] == clear["study_id"]
    _, busy = studied(quick_client, bursts(5))
    best = quick_client.get("/v1/best", params=ASK).json()
    assert best["study_id"] == clear["study_id"]
    assert newest_decision(quick_client, best["target_key"])["note"] == "the machine was too busy"
    page = quick_client.get(f"/studies/{busy['study_id']}").text
    assert "the current recommendation stays" in page and "recommendation is faster" not in page


def newest_decision(client, target_key):
    return client.get("/v1/best:history", params={"target_key": target_key}).json()["decisions"][0]


def test_another_studys_answer_is_called_faster_only_than_undisturbed_runs(quick_client):
    _, clear = studied(quick_client, beside(lambda: 0.0))
    key = quick_client.get("/v1/best", params=ASK).json()["target_key"]
    loads = iter([0.0] * 20)
    _, loaded = studied(quick_client, beside(lambda: next(loads, 1.0)))
    assert loaded["result"]["verdict"] == "confirmed" and loaded["result"]["final_comparison"]["disturbed_runs"] > 0
    decision = newest_decision(quick_client, key)
    assert decision["action"] == "kept" and "may be faster than measured" in decision["note"]
    recommended = quick_client.get("/v1/best", params=ASK).json()
    assert recommended["study_id"] == clear["study_id"], "a quiet machine's answer stays"


def served(client):
    """What training jobs get, without its age."""
    return {name: value for name, value in client.get("/v1/best", params=ASK).json().items() if name != "age_s"}


def reference_speed(client, target_key):
    """Speed with which canaries of the recommendation are compared."""
    with client.app.state.context.db.read() as session:
        row = get_target(session, "default", target_key)
        return reference_of(session, row, row.recommended).reference


def compared(client, target_key):
    """Speed of the recommendation's validation runs, as the comparison of configurations shows it."""
    (shown,) = client.get("/v1/comparisons", params={"pick": target_key}).json()["configs"]
    return shown["validation"]


def test_a_confirmed_answer_outlasts_an_extension_on_a_busy_machine(quick_client):
    worker, study = studied(quick_client, beside(lambda: 0.0))
    url, best = f"/v1/studies/{study['study_id']}", served(quick_client)
    assert study["result"]["verdict"] == best["verdict"] == "confirmed"
    speed, shown = reference_speed(quick_client, best["target_key"]), compared(quick_client, best["target_key"])
    worker.behave = bursts()
    quick_client.post(f"{url}:extend", json={"add_trials": 3}).raise_for_status()
    worker.work(400)
    extended = quick_client.get(url).json()
    before, after = study["result"], extended["result"]
    assert (extended["state"], after["final_comparison"]["number"]) == ("complete", 1)
    for field in ("verdict", "best", "baseline", "speedup", "too_busy"):
        assert after[field] == before[field]
    assert after["later_too_busy"]["disturbed_runs"] > 0 and before["later_too_busy"] is None
    assert after["search_runs"] > before["search_runs"] and after["disturbed_search_runs"] > 0
    assert after["final_comparison"]["runs"] > before["final_comparison"]["runs"], "the cost is that of all comparisons"
    assert served(quick_client) == best and best["confidence"]["level"] == "high"
    assert quick_client.get(f"{url}/best").json() == after
    assert reference_speed(quick_client, best["target_key"]) == speed, "canaries are not compared with disturbed runs"
    assert compared(quick_client, best["target_key"]) == shown
    (kept,) = quick_client.get("/v1/recommendations").json()["recommendations"]
    assert (kept["state"], kept["answer"]["result"]) == ("recommended", before)
    decision = newest_decision(quick_client, best["target_key"])
    assert decision["action"] == "inconclusive" and "too busy to compare again" in decision["note"]
    page = quick_client.get(f"/studies/{study['study_id']}").text
    assert "so its confirmed answer stays" in page and "recommended</span>" in page and "too_busy" not in page
    assert "enough for the verdict" not in page, "the runs of the newest comparison decided nothing"
    # A quiet machine renews the verdict as ever.
    worker.behave = beside(lambda: 0.0)
    quick_client.post(f"{url}:extend", json={"add_trials": 2}).raise_for_status()
    worker.work(400)
    renewed = quick_client.get(url).json()["result"]
    assert (renewed["verdict"], renewed["later_too_busy"]) == ("confirmed", None)
    assert served(quick_client)["recommendation_id"] != best["recommendation_id"]


def test_pairs_that_are_added_after_a_busy_extension_run_although_its_pairs_ended_the_test(quick_client):
    worker, study = studied(quick_client, beside(lambda: 0.0))
    url = f"/v1/studies/{study['study_id']}"
    worker.behave = beside(lambda: 1.0)
    quick_client.post(f"{url}:extend", json={"add_trials": 2}).raise_for_status()
    worker.work(400)
    busy = quick_client.get(url).json()["result"]
    assert (busy["verdict"], busy["later_too_busy"]["missing_runs"]) == ("confirmed", 2)
    worker.behave = beside(lambda: 0.0)
    quick_client.post(f"{url}:extend", json={"add_pairs": 1}).raise_for_status()
    worker.work(400)
    renewed = quick_client.get(url).json()["result"]
    compared = renewed["final_comparison"]
    assert (renewed["verdict"], renewed["later_too_busy"], compared["pairs"]) == ("confirmed", None, 8)
    assert compared["number"] > study["result"]["final_comparison"]["number"]


def test_a_confirmed_answer_whose_trial_became_infeasible_does_not_stay(quick_client):
    worker, study = studied(quick_client, beside(lambda: 0.0))
    best, busy = study["result"]["best"]["trial_number"], bursts()

    def behave(lease, task):
        run = busy(lease, task)
        is_of_best = lease.trial_number == best
        return run.model_copy(update={"memory": Memory(peak_allocated_gib=9.0)}) if is_of_best else run

    worker.behave = behave
    url = f"/v1/studies/{study['study_id']}"
    quick_client.post(f"{url}:extend", json={"add_trials": 3}).raise_for_status()
    worker.work(400)
    result = quick_client.get(url).json()["result"]
    assert result["verdict"] == "too_busy" and result["later_too_busy"] is None
    assert result["best"]["trial_number"] != best


def test_pages_of_a_too_busy_study_say_it_first(quick_client, busy_study):
    text = quick_client.get(f"/studies/{busy_study['study_id']}").text
    sentence = text.split('<p class="sentence">')[1].split("</p>")[0]
    assert sentence.startswith("Too busy: no candidate is shown to be faster on a quiet machine. ")
    assert "Other programs disturbed the runs" in sentence and "clang on 0.9 cores" in sentence
    assert "too busy" in quick_client.get("/").text
    assert "too_busy" in quick_client.get(f"/studies/{busy_study['study_id']}/export?which=best").text
    box = text.split("<h2>Recommendation")[1].split("</section>")[0]
    assert "for now, low confidence</span>" in box and "recommended</span>" not in box
    assert "no candidate is shown to be faster" in box and "recommended as the fastest known" not in box


def waiting(client, **changes):
    worker = SimulatedWorker(client).register()
    study_id = create(client, wait_for_quiet_s=60, **changes)
    worker.do(worker.lease())
    return worker, study_id


@pytest.mark.wide_on_postgres
def test_runs_wait_for_a_quiet_machine_within_the_studys_seconds_in_all(client):
    worker, study_id = waiting(client)
    lease = worker.lease()
    order = lease.quiet_wait
    assert (order.most_s, order.waited_s) == (60, 0) and order.most_foreign_cores == pytest.approx(0.3)
    programs = [program.model_dump() for program in CLANG]
    wait = {"phase": "waiting_for_quiet", "foreign_cpu_cores": 1.3, "foreign_programs": programs, "waited_s": 25.0}
    assert worker.heartbeat(lease, progress=wait)["action"] == "continue"
    assert "waiting until the machine is quiet" in client.get(f"/studies/{study_id}").text
    assert "clang on 0.9 cores, chrome on 0.4 cores" in client.get(f"/studies/{study_id}").text
    worker.report(lease, measurement(1000), waited_s=40.0).raise_for_status()
    assert worker.lease().quiet_wait.most_s == pytest.approx(20)


@pytest.mark.wide_on_postgres
def test_the_wait_of_a_killed_worker_counts_and_no_wait_is_left_once_it_is_used(client, clock):
    worker, _ = waiting(client)
    lease = worker.lease()
    worker.heartbeat(lease, progress={"phase": "waiting_for_quiet", "waited_s": 45.0})
    again = SimulatedWorker(client, name="sim").register()
    second = again.lease()
    assert (second.run_id, second.attempt) == (lease.run_id, 2)
    assert (second.quiet_wait.most_s, second.quiet_wait.waited_s) == (pytest.approx(15), 45)
    again.report(second, measurement(1000), waited_s=60.0).raise_for_status()
    assert again.lease().quiet_wait is None


@pytest.mark.wide_on_postgres
def test_a_repeated_run_that_may_not_wait_leaves_the_wait_used(client):
    """Its progress said nothing of a wait, and the study could wait for all its seconds again."""
    worker, _ = waiting(client)
    worker.heartbeat(worker.lease(), progress={"phase": "waiting_for_quiet", "waited_s": 60.0})
    again = SimulatedWorker(client, name="sim").register()
    second = again.lease()
    assert second.attempt == 2 and second.quiet_wait is None
    assert again.heartbeat(second, progress={"phase": "measuring"})["action"] == "continue"
    again.report(second, measurement(1000)).raise_for_status()
    assert again.lease().quiet_wait is None


@pytest.mark.wide_on_postgres
def test_only_runs_whose_speed_counts_wait(client):
    worker = SimulatedWorker(client).register()
    create(client, wait_for_quiet_s=60)
    lease = worker.lease()
    assert not isinstance(lease.task, TrialTask) and lease.quiet_wait is None


@pytest.mark.wide_on_postgres
@pytest.mark.parametrize("seconds", [0, -1, 1e9])
def test_a_wait_that_is_no_time_is_rejected(client, seconds):
    SimulatedWorker(client).register()
    answer = client.post("/v1/studies", json=SPEC | {"cluster": CLUSTER.model_dump(), "wait_for_quiet_s": seconds})
    assert answer.status_code == 422 and answer.json()["errors"][0]["field"] == "wait_for_quiet_s"
