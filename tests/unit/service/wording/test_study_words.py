"""Words that pages and commands share."""

import pytest

from shardtune.api_schemas.formatting import speed_in_words
from shardtune.api_schemas.trials.trial import RunPurpose, TrialReason
from shardtune.service.wording import change_words, study_words


def test_every_kind_of_run_has_a_name_for_people():
    assert study_words.run_name(RunPurpose.VALIDATION) == "validation run"
    assert len({study_words.run_name(purpose) for purpose in RunPurpose}) == len(RunPurpose)


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [(6.76e3, "6.76 kB/s"), (2.5e6, "2.5 MB/s"), (1.2e10, "12 GB/s"), (12.0, "12 B/s"), (0.0, "0 B/s")],
)
def test_a_speed_has_the_unit_that_it_needs(bytes_per_s, text):
    assert speed_in_words(bytes_per_s) == text


@pytest.mark.parametrize(
    ("gain", "text"), [(0.017, "1.7%"), (0.0006, "0.1%"), (0.0004, "below 0.1%"), (0.0, "below 0.1%")]
)
def test_a_gain_that_rounds_to_nothing_is_not_printed_as_zero(gain, text):
    """`expected gain 0.0%` was said of a trial that then ran."""
    reason = TrialReason(
        expected_gain=gain,
        probability_faster=0.1,
        probability_infeasible=0.0,
        tokens_per_s_per_gpu=1.0,
        low_tokens_per_s_per_gpu=0.5,
        high_tokens_per_s_per_gpu=2.0,
        tests="micro_batch 8 instead of 1",
    )
    assert change_words.expected_gain(reason) == f"expected gain {text}"
