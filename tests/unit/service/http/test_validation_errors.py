"""Mistakes in requests, in words that name no class of ours."""

import pytest
from pydantic import ValidationError

from shardtune.api_schemas.studies import StudyRequest
from shardtune.service.http.validation_errors import field_error, of_the_likeliest_branch

SOUND = {"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 16}}


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"baseline": "ds.json"}, "baseline", "paths (.json, .yaml) are read by the command line only"),
        ({"model": "my-llama.json"}, "model", "or give the content of a config.json"),
        ({"workload": "x"}, "workload", "must be an object with sequence_length and global_batch"),
        ({"space": []}, "space", "must be an object; send one"),
        ({"space": {"backends": ["fsdp"]}}, "space.backends.0", "fsdp2"),
        ({"space": {"backends": []}}, "space.backends", "at least 1 item"),
    ],
)
def test_a_mistake_is_said_once_with_field_and_remedy(change, field, says):
    with pytest.raises(ValidationError) as refused:
        StudyRequest.model_validate(SOUND | change)
    (error,) = map(field_error, of_the_likeliest_branch(refused.value.errors()))
    assert error.field == field and says in error.message and "dictionary" not in error.message
