"""TrainJobs before and after the webhook, read by the models that Kubeflow Trainer publishes: `make test` has one release
of them, and `make test-consumers` runs this module once with each of three.
"""

import importlib
import json
from typing import Any

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.service.kubeflow import review
from shardtune.service.kubeflow.recommendation import JobRecommendation
from shardtune.service.kubeflow.wish import Wish
from shardtune.tuner.prediction import catalogue
from shardtune.workers.rank import check_export, check_launchers
from tests.support.values import train_jobs
from tests.support.values.train_jobs import patched, train_job

RELEASE = check_export.installed_release("kubeflow-trainer-api")
pytestmark = pytest.mark.skipif(RELEASE == (0, 0), reason="no models of Kubeflow Trainer are installed")
TRAINERS: tuple[dict[str, Any], ...] = (
    {},
    {"numNodes": 2},
    {"numProcPerNode": 8},
    {"resourcesPerNode": {"limits": {"memory": "1Ti"}}, "env": [{"name": "A", "value": "$(B)"}]},
)


class OneAnswer:
    """Recommends one configuration on the first cluster of a wish."""

    def recommend(self, wish: Wish) -> JobRecommendation:
        config = TrialConfig.model_validate({"strategy": {"kind": "fsdp2", "dp_shard": 8}, "expandable_segments": True})
        return JobRecommendation(catalogue.parse_cluster(wish.clusters[0]), config, 1000.0, "measured by study s1")


def unknown_fields(job: dict[str, Any]) -> list[str]:
    """Fields of a TrainJob that the models do not know."""
    models = importlib.import_module("kubeflow_trainer_api.models")
    kept = json.loads(json.dumps(models.TrainerV1alpha1TrainJob.from_dict(job).to_dict()))
    return list(check_launchers.unknown_fields(job, kept))


def completed(job: dict[str, Any]) -> dict[str, Any]:
    return patched(job, review.answer(train_jobs.review(job), ["8xh100", "2x8xh100"], OneAnswer()))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_job_is_valid_before_and_after_the_webhook(trainer: dict[str, Any]) -> None:
    job = train_job(trainer)
    after = completed(job)
    assert after["spec"]["trainer"]["numProcPerNode"] == 8 and after != job
    assert unknown_fields(job) == unknown_fields(after) == []


def test_a_number_of_processes_in_words_stays_where_the_release_allows_it() -> None:
    after = completed(train_job({"numProcPerNode": "auto"}))
    assert after["spec"]["trainer"]["numProcPerNode"] == "auto" and after["spec"]["trainer"]["numNodes"] == 1
    if RELEASE < (2, 2):
        assert unknown_fields(after) == []
    else:
        with pytest.raises(ValueError, match="numProcPerNode"):
            unknown_fields(after)


def test_a_field_that_the_models_do_not_know_is_seen() -> None:
    assert unknown_fields(completed(train_job({"numProcs": 8}))) == [".spec.trainer.numProcs"]
