"""DoRA trains the same on every backend as in one process over the whole global batch."""

from typing import Any

import pytest

from tests.rank.helpers.adapter_tasks import FP32, STRATEGIES, TWO_BLOCKS
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import tiny_task

DORA: dict[str, Any] = {"kind": "lora", "rank": 4, "alpha": 8.0, "dora": True}


@pytest.mark.ranks
@pytest.mark.parametrize("name", STRATEGIES)
def test_dora_trains_the_same_on_every_backend(host: HostProcess, name: str) -> None:
    task = tiny_task(
        STRATEGIES[name], model=TWO_BLOCKS, parity_steps=3, adapter=DORA, micro_batch=2, max_grad_norm=0.05
    )
    report = host.run(task)[0]
    assert report.status == "complete", report.failure
    differs = deviation(report.trajectory, train(task))
    assert all(differs[quantity] <= bound for quantity, bound in FP32.items()), differs
