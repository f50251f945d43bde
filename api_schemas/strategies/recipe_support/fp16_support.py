"""Workloads, mesh axes and knobs with which float16 and its loss scale can be trained, and the reasons why others cannot."""

from collections.abc import Mapping

from shardtune.api_schemas.strategies import TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.optimizers import AdamW
from shardtune.api_schemas.training.workload import Precision, WorkloadRequest

_WHY = {
    "context_parallel": "gives each rank a part of every sample, which nobody has compared in float16",
    "tensor_parallel": "splits matrices, so that only some of the ranks that share them may overflow",
    "pipeline_parallel": "cuts the model into stages, of which only some may overflow",
    "expert_parallel": "divides experts over meshes of their own, which one loss scale does not cover",
}
"""Reasons why float16 cannot be trained if several ranks form a parallel axis, by the field that sets the size of the
axis."""
NO_ZERO_OFFLOAD = (
    "DeepSpeed 0.19.8 keeps overflowed gradients on the host below stage 3, so that no later step recovers"
)
"""Reason why ZeRO-1 and ZeRO-2 cannot keep the optimizer on the host in float16."""
_NOT_COMPARED = "was not compared with other backends"
_OFFLOAD = "was not compared in float16 with other backends on GPUs"


def check_workload(workload: WorkloadRequest, model: ModelSpec | None = None) -> None:
    """Reject a workload in float16 that no backend can train, or for which no test has compared the backends.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    precision = workload.precision
    if precision is None or not precision.scales_loss:
        return
    stated = f"precision ({precision.name!r})"
    if model is not None and model.script is not None:
        raise ValueError(
            f"{stated} scales the loss, and a script of your own (model.script) runs backward itself; use another precision"
        )
    if not isinstance(workload.optimizer, AdamW):
        raise ValueError(
            f"optimizer.kind ({workload.optimizer.kind!r}) with {stated} was not compared over backends; use adamw, or "
            "another precision"
        )
    if workload.float8 is not None:
        raise ValueError(
            f"float8 ({workload.float8!r}) with {stated}: its gradients have a scale of their own; use precision "
            "'bf16-mixed', or leave out float8"
        )
    if workload.adapter is not None:
        raise ValueError(
            f"adapter ({workload.adapter.describe()}) with {stated} was not compared over backends; use precision "
            "'bf16-mixed' or 'fp32', or leave out adapter"
        )


def check(config: TrialConfig, workload: WorkloadRequest, model: ModelSpec | None = None) -> None:
    """Reject a configuration that would train float16 differently from the other backends, or that no test has compared
    with them.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    precision = workload.precision
    if precision is None or not precision.scales_loss:
        return
    check_workload(workload, model)
    strategy, stated = config.strategy, f"precision ({precision.name!r})"
    check_axis("context_parallel", config.context_parallel, precision)
    check_axis("tensor_parallel", strategy.model_parallel // strategy.stages, precision)
    check_axis("pipeline_parallel", strategy.stages, precision)
    check_axis("expert_parallel", strategy.expert_ranks, precision)
    if getattr(strategy, "cpu_offload", False):
        raise ValueError(f"strategy.cpu_offload (true) with {stated} {_OFFLOAD}; set it to false")
    if (
        isinstance(strategy, ZeroConfig)
        and strategy.offload_optimizer is not None
        and not offloads_optimizer(strategy.stage, precision)
    ):
        raise ValueError(
            f"strategy.offload_optimizer at stage {strategy.stage} with {stated}: {NO_ZERO_OFFLOAD}; leave it out, or use "
            "stage 3"
        )
    if getattr(strategy, "deepcompile", False):
        raise ValueError(f"deepcompile (true) with {stated} {_NOT_COMPARED}; set it to false")


def offloads_optimizer(stage: int, precision: Precision) -> bool:
    """Whether ZeRO of this stage can keep its optimizer on the host if the workload trains in float16."""
    return stage == 3 or not precision.scales_loss


def check_axis(name: str, size: int, precision: Precision) -> None:
    """Reject a size above 1 of one parallel axis if the workload trains in float16.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size > 1 and precision.scales_loss:
        raise ValueError(f"{name} ({size}) {_WHY[name]} (precision {precision.name!r}); use 1, or another precision")


def can_train(config: TrialConfig, workload: WorkloadRequest) -> bool:
    """Whether a configuration can train the workload, judged only by the rules for float16."""
    try:
        check(config, workload)
    except ValueError:
        return False
    return True


def check_limits(knobs: Mapping[str, object], precision: Precision) -> None:
    """Reject search limits that allow only shards offloaded to the host, if the precision is float16.

    Raises:
        ValueError: names the knob, its values and the remedy.
    """
    named = knobs.get("cpu_offload", False)
    values = named if isinstance(named, list | tuple) else (named,)
    if precision.scales_loss and False not in values:
        raise ValueError(f"space.knobs.cpu_offload ({', '.join(map(str, values))}) {_OFFLOAD}; leave it out")
