"""A remedy that was tried in a study of its own is what its case is served from then on, if it won."""

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.tuner.search.space.flat import flatten
from tests.support.service.scenarios import best
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, measurement, speed_of


@pytest.mark.answered
@pytest.mark.parametrize("factor", [1.2, 0.8])
def test_the_answer_of_the_target_changes_if_the_remedy_won(quick_client, factor):
    answer = best(quick_client)["best"]
    traced = TrialConfig.model_validate(answer["config"])
    knobs = {"reshard_after_forward": not traced.strategy.reshard_after_forward}

    def remedied(_lease, task):
        with_remedy = flatten(task.config)["reshard_after_forward"] == knobs["reshard_after_forward"]
        return measurement(speed_of(task.config) * (factor if with_remedy else 1.0))

    spec = SPEC | {
        "baseline": answer["config"],
        "budget": {"max_trials": 2, "max_pairs": 14, "resume_check": False},
        "space": {"backends": ["fsdp2"], "knobs": knobs | {"micro_batch": traced.micro_batch}},
        "sampler": "random",
    }
    study = quick_client.post("/v1/studies", json=spec).json()["study_id"]
    SimulatedWorker(quick_client, behave=remedied).register().work()
    best_answer = best(quick_client)
    served = flatten(TrialConfig.model_validate(best_answer["best"]["config"]))["reshard_after_forward"]
    assert (best_answer["study_id"] == study) is (factor > 1)
    assert (served == knobs["reshard_after_forward"]) is (factor > 1)
