"""The number of a strategy's communicators does not depend on the depth of the model: NCCL's each take memory of the
device."""

import json

import pytest

from tests.rank.helpers.communicators import STRATEGIES
from tests.support.processes import preloaded_forks
from tests.support.ranks.torch_features import OWN_REDUCE_SCATTER

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def group_counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Communicators by strategy, with few and with more blocks, on four ranks."""
    log = tmp_path_factory.mktemp("communicators") / "ranks.log"
    printed: dict[str, list[int]] = json.loads(
        preloaded_forks.output_of("tests.rank.helpers.communicators", log=log).splitlines()[-1]
    )
    return printed


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_deeper_model_has_no_more_communicators(group_counts: dict[str, list[int]], name: str) -> None:
    few, more = group_counts[name]
    assert more <= few


@pytest.mark.skipif(not OWN_REDUCE_SCATTER, reason="torch 2.13 brought the group")
def test_a_group_of_its_own_for_reduce_scatter_is_one_more_communicator(group_counts: dict[str, list[int]]) -> None:
    shared = group_counts["fsdp2"]
    assert group_counts["fsdp2-own-reduce-scatter"] == [count + 1 for count in shared]
