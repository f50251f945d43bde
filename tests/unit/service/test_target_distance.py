"""Recommendations that may stand in for another tuning target, and those that train something else."""

import pytest

from shardtune.api_schemas.recommendations.best import ConfidenceLevel
from shardtune.service.best.target_distance import may_stand_in

CASE = {
    "model.config.hidden_size": 256,
    "model.config.num_hidden_layers": 4,
    "model.config.vocab_size": 2048,
    "workload.precision.master_dtype": "float32",
    "workload.data.layout": "padded",
}


@pytest.mark.parametrize("lowest", ConfidenceLevel)
def test_no_answer_stands_in_for_states_of_another_dtype(lowest: ConfidenceLevel) -> None:
    other = CASE | {"workload.precision.master_dtype": "bfloat16"}
    assert not may_stand_in(CASE, other, ["workload.precision.master_dtype"], lowest)


def test_an_answer_for_other_lengths_has_low_confidence() -> None:
    other = CASE | {"workload.data.layout": "grouped"}
    names = ["workload.data.layout"]
    assert may_stand_in(CASE, other, names, ConfidenceLevel.LOW)
    assert not may_stand_in(CASE, other, names, ConfidenceLevel.MEDIUM)
