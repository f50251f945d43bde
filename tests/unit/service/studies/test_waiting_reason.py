"""Reason of a study that waited for a worker in vain."""

from shardtune.api_schemas.studies.study import StudyState
from shardtune.service.pages.views import words
from shardtune.service.studies import wait_for_worker
from tests.support.values.synthetic_studies import study_of


def test_the_reason_is_one_sentence_with_the_remedy_and_no_part_of_it_apart():
    study = study_of().model_copy(update={"state": StudyState.FAILED, "reason": wait_for_worker.no_worker_reason(60.0)})
    short, details = words.split_reason(study)
    assert details == "" and short == study.reason
    assert "within 60 s" in short and "`shardtune worker`" in short and "longer wait_for_worker_s" in short
