"""Variables that a configuration sets for its ranks, over those inherited from the worker."""

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.strategies.rank_environment import KEPT_MEMORY, threads_of, variables


def config(**environment: object) -> TrialConfig:
    return TrialConfig.model_validate({"strategy": DdpConfig(), **environment})


def test_a_configuration_that_says_nothing_sets_the_threads_alone() -> None:
    assert variables(config(), {}, cores=16, ranks=8) == {"OMP_NUM_THREADS": "2"}


def test_everything_that_can_be_said() -> None:
    stated_config = config(malloc="keep", threads=3, expandable_segments=True, max_connections=1)
    inherited = {"OMP_NUM_THREADS": "7", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"}
    assert variables(stated_config, inherited, cores=16, ranks=8) == KEPT_MEMORY | {
        "OMP_NUM_THREADS": "3",
        "PYTORCH_ALLOC_CONF": "backend:native,expandable_segments:True",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    assert "kept to cores of its own" in config(numa_binding="exclusive").describe()
    words = "freed memory kept, 3 threads a rank, expandable segments, device connections 1"
    assert words in stated_config.describe()


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_expandable_segments_that_an_image_turned_on_are_off_where_the_knob_is(name: str) -> None:
    inherited = {name: "max_split_size_mb:64,expandable_segments:True"}
    values = variables(config(), inherited, cores=2, ranks=1)
    assert values["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:64,expandable_segments:True,expandable_segments:False"
    other = variables(config(), {name: "max_split_size_mb:64"}, cores=2, ranks=1)
    assert "PYTORCH_ALLOC_CONF" not in other


@pytest.mark.parametrize(
    ("inherited", "threads"), [("4", 4), ("4,2", 4), ("", 2), ("0", 2), ("²", 2), ("many", 2)]
)  # fmt: skip
def test_the_worker_s_threads_count_before_the_share_of_the_cores(inherited: str, threads: int) -> None:
    assert threads_of({"OMP_NUM_THREADS": inherited}, cores=5, ranks=2) == threads


def test_a_rank_has_one_thread_at_least() -> None:
    assert threads_of({}, cores=2, ranks=8) == 1
