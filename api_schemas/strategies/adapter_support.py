"""Mesh axes with which adapters can be trained, and the reasons why others cannot."""

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.adapters import AdapterSchema

_WHY = {
    "tensor_parallel": "splits matrices by transformers' plans, which know no adapter",
    "pipeline_parallel": "cuts the model into stages, of which the first may have nothing to train",
    "expert_parallel": "divides experts, beside which nobody has trained an adapter",
}
"""Reasons why an adapter cannot be trained if several ranks form a parallel axis, by the field that sets the size of
the axis."""


def check(config: TrialConfig, adapter: AdapterSchema | None) -> None:
    """Reject a configuration whose parallel axes do not allow the workload's adapter to be trained.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    strategy = config.strategy
    check_axis("tensor_parallel", strategy.model_parallel // strategy.stages, adapter)
    check_axis("pipeline_parallel", strategy.stages, adapter)
    check_axis("expert_parallel", strategy.expert_ranks, adapter)


def check_axis(name: str, size: int, adapter: AdapterSchema | None) -> None:
    """Reject a size above 1 of one parallel axis, if the workload has an adapter.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size > 1 and adapter is not None:
        raise ValueError(
            f"{name} ({size}) {_WHY[name]} (workload.adapter: {adapter.describe()}); use 1, or leave out the adapter"
        )
