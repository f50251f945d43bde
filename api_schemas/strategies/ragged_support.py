"""Mesh axes and knobs with which samples of several lengths can be trained, and the reasons why others cannot."""

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.sample_lengths import SampleLengths

_WHY = {
    "context_parallel": "gives each rank an equal part of every sample",
    "tensor_parallel": "divides the positions of every sample equally among ranks",
    "pipeline_parallel": "sends hidden states of one shape from stage to stage",
    "expert_parallel": "exchanges tokens between ranks, which nobody has compared for rows of several lengths",
}
"""Reasons why samples of different lengths cannot be trained if several ranks form a parallel axis, by the field that
sets the size of the axis."""
_WHY_PACKED = _WHY | {
    "context_parallel": "divides rows among ranks, whose mask knows no bounds of packed samples",
    "tensor_parallel": "divides the positions of rows among ranks, which nobody has compared for packed samples",
    "pipeline_parallel": "sends hidden states from stage to stage, but no positions of packed samples",
}
"""Reasons why samples packed into rows cannot be trained if several ranks form a parallel axis, by the field that sets
the size of the axis."""


def check(config: TrialConfig, data: SampleLengths | None) -> None:
    """Reject a configuration that cannot train samples of different lengths.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    strategy = config.strategy
    check_axis("context_parallel", config.context_parallel, data)
    check_axis("tensor_parallel", strategy.model_parallel // strategy.stages, data)
    check_axis("pipeline_parallel", strategy.stages, data)
    check_axis("expert_parallel", strategy.expert_ranks, data)
    if data is not None and getattr(strategy, "deepcompile", False):
        reason = (
            "was not compared for packed samples" if data.is_packed else "builds its program for rows of one length"
        )
        raise ValueError(
            f"deepcompile (true) {reason} (workload.data: {data.describe()}); set it to false, or leave out data"
        )


def check_axis(name: str, size: int, data: SampleLengths | None) -> None:
    """Reject a size above 1 of one parallel axis if the workload's samples have different lengths.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size > 1 and data is not None:
        reason = (_WHY_PACKED if data.is_packed else _WHY)[name]
        raise ValueError(
            f"{name} ({size}) {reason} (workload.data: {data.describe()}); use 1, or leave out data to measure samples "
            "of one length"
        )
