"""An entry point's loss is what each backend trains with."""

import json

import pytest

from shardtune.api_schemas.training.search_space import BACKENDS
from tests.rank.helpers import custom_loss
from tests.support.processes import preloaded_forks

pytestmark = pytest.mark.ranks

STRATEGIES = {
    "ddp": {"kind": "ddp"},
    "zero": {"kind": "zero", "stage": 2, "reduce_bucket_size": 50_000, "allgather_bucket_size": 50_000},
    "fsdp1": {"kind": "fsdp1", "dp_shard": 2},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 2},
}


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    folder = tmp_path_factory.mktemp("losses")
    printed = preloaded_forks.ranks(custom_loss.print_losses, STRATEGIES, folder, logs=folder)
    actual_printed: dict[str, list[float]] = json.loads(printed[0].splitlines()[-1])
    return actual_printed


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_the_one_that_is_trained_with(losses: dict[str, list[float]], backend: str) -> None:
    theirs, own = losses[backend]
    assert own == pytest.approx(custom_loss.FACTOR * theirs, rel=1e-6)
