"""Words that pages and commands share."""

import pytest

from shardtune.api_schemas.formatting import speed_in_words
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.service.wording import study_words


def test_every_kind_of_run_has_a_name_for_people():
    assert study_words.run_name(RunPurpose.VALIDATION) == "validation run"
    assert len({study_words.run_name(purpose) for purpose in RunPurpose}) == len(RunPurpose)


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [(6.76e3, "6.76 kB/s"), (2.5e6, "2.5 MB/s"), (1.2e10, "12 GB/s"), (12.0, "12 B/s"), (0.0, "0 B/s")],
)
def test_a_speed_has_the_unit_that_it_needs(bytes_per_s, text):
    assert speed_in_words(bytes_per_s) == text
