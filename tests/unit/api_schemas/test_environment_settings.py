"""Variables of a worker's environment that are recorded, and their form."""

import pytest

from shardtune.api_schemas.training.environment_settings import by_name, recorded_variables, setting_of


def test_known_variables_are_recorded_by_name_and_others_are_not() -> None:
    environment = {"OMP_NUM_THREADS": "4", "HOME": "/root", "NCCL_NEW_THING": "1", "MALLOC_ARENA_MAX": "2"}
    assert recorded_variables(environment) == ("MALLOC_ARENA_MAX=2", "NCCL_NEW_THING=1", "OMP_NUM_THREADS=4")


@pytest.mark.parametrize(
    "name", ["NCCL_API_KEY", "PYTORCH_HUB_TOKEN", "NCCL_DEBUG_FILE", "NCCL_COMM_ID", "PYTORCH_VERSION", "AWS_SECRET"]
)
def test_secrets_and_what_changes_nothing_measured_are_never_recorded(name: str) -> None:
    assert setting_of(name) is None and recorded_variables({name: "x"}) == ()


def test_a_value_is_one_short_line() -> None:
    (actual,) = recorded_variables({"NCCL_GRAPH_FILE": "a\n\u202eb" + "x" * 1000})
    assert actual.startswith("NCCL_GRAPH_FILE=a bx") and len(actual) < 250


def test_what_was_recorded_is_read_back() -> None:
    environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True,backend=native", "LD_PRELOAD": ""}
    assert by_name(recorded_variables(environment)) == environment
