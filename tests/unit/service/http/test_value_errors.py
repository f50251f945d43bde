"""Errors of the tuner's rules as errors of the API: which field each names, by its path in the request."""

import pytest

from shardtune.service.http.errors import NotFound, invalid_from_value_error


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        ("micro_batch (3) must divide the batch; use 4", "baseline.micro_batch", "3"),
        ("baseline.stage ('rm') is trained by no trial; use sft", "baseline.stage", "rm"),
        ("baseline.strategy.kind is missing; add it", "baseline.strategy.kind", None),
        ("strategy.kind is missing; add it", "baseline.strategy.kind", None),
        ("baseline.spam is no key of axolotl; drop it", "baseline.spam", "spam"),
        ("baseline ([]) must be an object; write one", "baseline", "[]"),
    ],
)
def test_a_name_is_relative_unless_the_message_begins_with_the_whole_path(
    message: str, field: str, value: str | None
) -> None:
    (mistake,) = invalid_from_value_error("baseline", ValueError(message)).errors
    assert (mistake.field, mistake.value, mistake.message) == (field, value, message)


def test_without_a_path_the_message_names_the_whole_one() -> None:
    (mistake,) = invalid_from_value_error("", ValueError("target (1 × 4 GPUs) is what the cluster has")).errors
    assert (mistake.field, mistake.value) == ("target", "1 × 4 GPUs")


def test_the_remedy_for_callers_of_the_api_is_no_part_of_the_summary() -> None:
    error = NotFound("unknown_study", "study x does not exist", api_remedy="GET /v1/studies lists those that do")
    assert error.detail == str(error) == "study x does not exist; GET /v1/studies lists those that do"
    assert error.summary == "study x does not exist"
    assert NotFound("unknown_study", "study x does not exist").detail == "study x does not exist"
