"""Trials of a tiny model at 512 ranks."""

from typing import Any

from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.tuner.prediction import catalogue
from tests.support.ranks.tiny_tasks import LLAMA, tiny_task

CLUSTER = catalogue.parse_cluster("64x8xh100")


def at_target(strategy: dict[str, Any], layers: int = 12, **changes: Any) -> TrialTask:
    """A trial at 512 ranks of a tiny model with this number of blocks."""
    task = tiny_task(strategy, **{"global_batch": 512, "precision": "bf16-mixed", **changes})
    model = task.model.model_copy(update={"config": LLAMA | {"num_hidden_layers": layers}})
    return task.model_copy(update={"cluster": CLUSTER, "model": model})
