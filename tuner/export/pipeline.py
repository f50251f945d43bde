"""Pipeline parallelism in the exported files: what `train_snippet.py` has for it, and who has no words for it."""

from typing import Any

from shardtune.api_schemas.pipeline_schedules import FACTS
from shardtune.api_schemas.strategies import Fsdp2Config
from shardtune.tuner.export import context, tensor
from shardtune.tuner.export.source import ExportSource, torch_dtype
from shardtune.tuner.export.templates import fill, indent

_TORCHTITANS_VIRTUAL = 2
"""Stages on a rank that torchtitan 0.2.2 has where several are, unless told otherwise."""


def stages(source: ExportSource) -> int:
    """Of the model."""
    return source.config.strategy.stages


def is_cut(source: ExportSource) -> bool:
    """Whether there are several."""
    return stages(source) > 1


def standard(source: ExportSource) -> tuple[str, ...]:
    """Modules that the snippet imports."""
    return ("copy", "functools") if is_cut(source) else ()


def of_root(source: ExportSource, lines: list[str]) -> list[str]:
    """Lines of the snippet's trainer, for the root that a stage is where there are several."""
    if not is_cut(source):
        return lines
    return [line.replace("self.model.", "root.").replace("in model.", "in root.") for line in lines]


def schedule(name: str) -> dict[str, str]:
    """The snippet's: torch's class, and what it is given."""
    return {"schedule": _class(name), "run": "stages" if FACTS[name].is_interleaved else "stages[0]"}


def _class(name: str) -> str:
    return f"Schedule{FACTS[name].title}"


def imports(source: ExportSource, name: str) -> tuple[str, ...]:
    """The snippet's, with the schedule of that name."""
    return (
        f"from torch.distributed.pipelining import PipelineStage, {_class(name)}",
        "from torch.distributed.pipelining._backward import stage_backward",
        *(() if tensor.is_split(source) else ("from torch.distributed.tensor import DTensor",)),
    )


def constant(source: ExportSource) -> list[str]:
    """The snippet's."""
    if not is_cut(source):
        return []
    return [
        f"STAGES = {stages(source)}  # groups of ranks, each with some of the blocks; outermost",
        f"VIRTUAL = {source.config.strategy.virtual_stages}  # stages of each of them",
    ]


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


def torchtitans_mesh(source: ExportSource, strategy: Fsdp2Config) -> dict[str, Any]:
    """Its fields for it."""
    if not is_cut(source):
        return {}
    layers = _layers_per_stage(source, strategy)
    return {
        "pipeline_parallel_degree": strategy.pipeline_parallel,
        "pipeline_parallel_schedule": FACTS[strategy.pipeline_schedule].title,
        "pipeline_parallel_microbatch_size": source.config.micro_batch,
        **({"pipeline_parallel_layers_per_stage": layers} if layers is not None else {}),
    }


def torchtitans_virtual_stages(source: ExportSource, strategy: Fsdp2Config) -> int:
    """Stages on a rank, where it can have as many."""
    several = _TORCHTITANS_VIRTUAL if strategy.pipeline_virtual_stages > 1 else 1
    return several if _layers_per_stage(source, strategy) is None else strategy.pipeline_virtual_stages


def _layers_per_stage(source: ExportSource, strategy: Fsdp2Config) -> int | None:
    """From which it gets as many stages; None: it has as many without that, or from no number.

    torchtitan 0.2.2 (`pipeline_llm`): as many stages as so many blocks go into all of them and two more, rounded up.
    """
    known, wanted = source.profile.pipeline_blocks, strategy.pipeline_parallel * strategy.pipeline_virtual_stages
    if known is None or strategy.pipeline_virtual_stages in (1, _TORCHTITANS_VIRTUAL):
        return None
    return next((layers for layers in range(1, known + 3) if -(-(known + 2) // layers) == wanted), None)


def besides_torchtitan(source: ExportSource) -> tuple[str, ...]:
    """What it does otherwise."""
    if not is_cut(source):
        return ()
    return (
        "pipeline_parallel: torchtitan keeps gathered parameters from the first backward to the last, weighs the embedding and the "
        "head as a block when it shares out the blocks, and its local batch is all micro batches of a step",
    )
