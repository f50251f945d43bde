"""Words that pages and commands share."""

from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.service.wording import study_words


def test_every_kind_of_run_has_a_name_for_people():
    assert study_words.run_name(RunPurpose.VALIDATION) == "validation run"
    assert len({study_words.run_name(purpose) for purpose in RunPurpose}) == len(RunPurpose)
