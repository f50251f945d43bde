"""A question with projections=true gets the newest projection of a study whose confirmed answer stayed after an extension."""

import pytest

from tests.support.service.scenarios import THREE_BACKENDS, create
from tests.support.service.simulated_worker import SimulatedWorker, measurement, speed_of, well
from tests.support.service.target_comparisons import TARGET, read, target_question

BASELINE = {"strategy": {"kind": "ddp"}, "micro_batch": 1}
BASELINE_SPEED, TRIALS = 1100.0, 4


class Wavering:
    """Every second validation run of a challenger is slower than the baseline, so that pairs decide nothing. New trials
    are faster in the search than all before."""

    def __init__(self):
        self.runs = {}

    def __call__(self, lease, task):
        number = lease.trial_number
        self.runs[number] = self.runs.get(number, 0) + 1
        if number == 0:
            return measurement(BASELINE_SPEED)
        if number >= TRIALS and self.runs[number] == 1:
            return measurement(1.5 * speed_of(task.config))
        return measurement(BASELINE_SPEED * (0.9 if self.runs[number] % 2 else 1.2))


def served_projection(client):
    answer = client.get("/v1/best", params=target_question(projections="true"))
    assert answer.status_code == 200, answer.text
    return answer.json()["projection"]


@pytest.mark.parametrize("is_pinned", [False, True])
def test_the_newest_projection_of_a_kept_answer_is_served_unless_a_person_has_pinned_it(quick_client, is_pinned):
    worker = SimulatedWorker(quick_client, behave=well).register()
    budget = {"max_trials": TRIALS, "max_pairs": 7}
    study_id = create(quick_client, **TARGET, **THREE_BACKENDS, baseline=BASELINE, budget=budget)
    worker.work()
    before = read(quick_client, study_id)["result"]
    assert before["verdict"] == "confirmed" and served_projection(quick_client) == before["projection"]
    if is_pinned:
        key = quick_client.get("/v1/recommendations").json()["recommendations"][0]["target_key"]
        quick_client.post("/v1/best:pin", params={"target_key": key}).raise_for_status()
    worker.behave = Wavering()
    quick_client.post(f"/v1/studies/{study_id}:extend", json={"add_trials": 2}).raise_for_status()
    worker.work(200)
    after = read(quick_client, study_id)["result"]
    assert after["later_undecided"] is not None and after["projection"] != before["projection"]
    assert served_projection(quick_client) == (before if is_pinned else after)["projection"]
