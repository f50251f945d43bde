"""Pipeline parallelism in the exported files: what `train_snippet.py` has for it, and who has no words for it."""

from typing import Any

from shardtune.tuner.export import context, tensor
from shardtune.tuner.export.source import ExportSource, torch_dtype
from shardtune.tuner.export.templates import fill, indent

_SCHEDULES = {"1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe"}
_TORCHTITANS = {"1f1b": "1F1B", "gpipe": "GPipe"}


def stages(source: ExportSource) -> int:
    """Of the model."""
    return source.config.strategy.stages


def is_cut(source: ExportSource) -> bool:
    """Whether there are several."""
    return stages(source) > 1


def schedule(name: str) -> str:
    """torch's class."""
    return _SCHEDULES[name]


def imports(source: ExportSource, name: str) -> tuple[str, ...]:
    """The snippet's, with the schedule of that name."""
    return (
        f"from torch.distributed.pipelining import PipelineStage, {_SCHEDULES[name]}",
        "from torch.distributed.pipelining._backward import stage_backward",
        *(() if tensor.is_split(source) else ("from torch.distributed.tensor import DTensor",)),
    )


def constant(source: ExportSource) -> list[str]:
    """The snippet's."""
    return [f"STAGES = {stages(source)}  # each with some of the blocks; outermost"] if is_cut(source) else []


def helpers(source: ExportSource) -> str:
    """The snippet's definitions."""
    if not is_cut(source):
        return ""
    recipe, loss = source.workload.recipe, [context.loss(source, "self.model")]
    if source.autocasts:
        loss = [f"with torch.autocast(tokens.device.type, {torch_dtype(recipe.compute_dtype)}):", f"    {loss[0]}"]
    return fill("pipeline", dtype=torch_dtype(recipe.weights_dtype), loss=indent(loss, 12))


def in_accelerates_script(source: ExportSource) -> list[str]:
    """What stands in the user's own."""
    if not is_cut(source):
        return []
    return [
        f"pipeline_parallel={stages(source)}, as measured: Accelerate trains in no stages; take used, cut, the schedule, the mesh and "
        "the data's rank from train_snippet.py"
    ]


def torchtitans_mesh(source: ExportSource, name: str) -> dict[str, Any]:
    """Its fields for it, with the schedule of that name."""
    if not is_cut(source):
        return {}
    return {
        "pipeline_parallel_degree": stages(source),
        "pipeline_parallel_schedule": _TORCHTITANS[name],
        "pipeline_parallel_microbatch_size": source.config.micro_batch,
    }


def besides_torchtitan(source: ExportSource) -> tuple[str, ...]:
    """What it does otherwise."""
    if not is_cut(source):
        return ()
    return (
        "pipeline_parallel: torchtitan keeps gathered parameters from the first backward to the last, weighs the embedding and the "
        "head as a block when it shares out the blocks, and its local batch is all micro batches of a step",
    )
