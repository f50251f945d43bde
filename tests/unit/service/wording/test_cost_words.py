"""Words for the estimated cost of a study."""

import pytest

from shardtune.api_schemas.studies.study_cost import Range, StudyCost
from shardtune.service.wording.cost_words import cost_rows


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.012, 0.34, "0.012 to 0.34"),
        (1.25, 9.4, "1.2 to 9.4"),
        (9.4, 120.4, "9.4 to 120"),
        (120, 31_000, "120 to 31,000"),
    ],
)
def test_gpu_hours_are_read_without_an_exponent(low, high, text):
    count = Range(low=1, high=1)
    hours = Range(low=low, high=high)
    cost = StudyCost.model_construct(
        trials=count,
        validation_runs=count,
        recipe_runs=Range(low=0, high=0),
        minutes=None,
        gpu_hours=hours,
        expected_gain=None,
        stops=(),
        basis="",
    )
    rows = dict(cost_rows(cost, on_cpu=False))
    assert rows["GPU-hours"] == text
    assert rows["trials"] == "1, then usually 1 validation run; more if many configurations are about as fast"
    assert rows["gain"].startswith("not known: no baseline or no configuration is predicted to fit")
