"""Reason of a study that waited for a worker in vain."""

from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.service.studies import wait_for_worker


def test_the_reason_is_one_sentence_with_the_remedy_and_no_part_of_it_apart():
    reason = wait_for_worker.no_worker_reason(60.0)
    assert reason.code is StudyReasonCode.NO_WORKER and reason.sentence == reason.text
    assert "within 60 s" in reason.text and "`shardtune worker`" in reason.text
    assert "longer wait_for_worker_s" in reason.text
