"""Pipeline parallelism in exported files: lines of `train_snippet.py`, and notes for programs that cannot express
it."""

from typing import Any

from shardtune.api_schemas.strategies import Fsdp2Config
from shardtune.api_schemas.strategies.pipeline_schedules import FACTS
from shardtune.tuner.export import context, tensor
from shardtune.tuner.export.source import ExportSource, torch_dtype
from shardtune.tuner.export.templates import fill, indent

_TORCHTITANS_VIRTUAL = 2
"""Number of stages per rank that torchtitan 0.3 uses by default under an interleaved schedule."""


_TIED = (
    "for twin in self.twins:",
    "    first = exchanged_with_other_end(twin.to_local(), self.group)",
    "    if rank > 0:",
    "        twin.to_local().copy_(first)",
)
_SUMMED = (
    "for twin in self.twins:",
    "    mine = twin.grad.to_local()",
    "    mine.add_(exchanged_with_other_end(mine, self.group))",
)
_PAIRS = "for first, last in zip(self.twins[: len(self.twins) // 2], self.twins[len(self.twins) // 2 :], strict=True):"
"""Source of a loop over the embedding tables that two pipeline stages share (tied weights), if both stages are on the
first rank."""
_TIED_IN_V = (_PAIRS, "    last.to_local().copy_(first.to_local())")
_SUMMED_IN_V = (_PAIRS, "    last.grad.to_local().copy_(first.grad.to_local().add_(last.grad.to_local()))")


def stages(source: ExportSource) -> int:
    """Number of pipeline stages in the exported configuration."""
    return source.config.strategy.stages


def has_stages(source: ExportSource) -> bool:
    """Whether the exported configuration has several pipeline stages."""
    return stages(source) > 1


def standard_modules(source: ExportSource) -> tuple[str, ...]:
    """Names of standard library modules that `train_snippet.py` imports for pipeline parallelism."""
    return ("copy", "functools") if has_stages(source) else ()


def of_root(source: ExportSource, lines: list[str]) -> list[str]:
    """Lines of the `Trainer` class in `train_snippet.py`. With several pipeline stages they operate on the stage's part
    of the model instead of the whole model."""
    if not has_stages(source):
        return lines
    return [line.replace("self.model.", "root.").replace("in model.", "in root.") for line in lines]


def trainer(source: ExportSource, strategy: Fsdp2Config, sync: list[str]) -> dict[str, str]:
    """Values for the `Trainer` template of `train_snippet.py`: a rank's pipeline stages, torch's schedule and its
    inputs, and the handling of embedding tables that two stages share.

    `sync`: lines that run before a stage's backward pass.
    """
    facts = FACTS[strategy.pipeline_schedule]
    # torch 2.13 keeps gradients whole until the last backward; the snippet's own stage reduces when this hook says so.
    hook = ["run.before_backward = functools.partial(self.before_backward, root)"]
    return {
        "own": "(rank, 2 * STAGES - 1 - rank)" if facts.is_v else "range(rank, STAGES * VIRTUAL, STAGES)",
        "run": "PipelineStage(\n                root,"
        if facts.splits_backward
        else "ShardedStage(\n                Plain(root),",
        "hook": indent([] if facts.splits_backward else hook, 12),
        "before": "" if facts.splits_backward else fill("pipeline_before", sync=indent(of_root(source, sync), 8)),
        "schedule": f"Schedule{facts.title}",
        "schedule_stages": "stages" if facts.is_interleaved else "stages[0]",
        "tie": indent(_TIED_IN_V if facts.is_v else _TIED, 12),
        "sum_twins": indent(_SUMMED_IN_V if facts.is_v else _SUMMED, 8),
    }


def imports(source: ExportSource, name: str) -> tuple[str, ...]:
    """Import lines of `train_snippet.py` for the pipeline schedule with this name."""
    facts = FACTS[name]
    return (
        f"from torch.distributed.pipelining import PipelineStage, Schedule{facts.title}",
        *(() if facts.splits_backward else ("from torch.distributed.pipelining._backward import stage_backward",)),
        *(() if tensor.is_split(source) else ("from torch.distributed.tensor import DTensor",)),
    )


def constants(source: ExportSource) -> list[str]:
    """Lines of `train_snippet.py` that define the constants of pipeline parallelism."""
    if not has_stages(source):
        return []
    return [
        f"STAGES = {stages(source)}  # groups of ranks, each with some of the blocks; outermost",
        f"VIRTUAL = {source.config.strategy.virtual_stages}  # stages of each of them",
    ]


def helpers(source: ExportSource) -> str:
    """Source of the functions that `train_snippet.py` defines for pipeline parallelism."""
    strategy = source.config.strategy
    if not has_stages(source) or not isinstance(strategy, Fsdp2Config):
        return ""
    facts = FACTS[strategy.pipeline_schedule]
    precision, loss = source.workload.precision, [context.loss(source, "self.model")]
    if source.autocasts:
        loss = [f"with torch.autocast(tokens.device.type, {torch_dtype(precision.compute_dtype)}):", f"    {loss[0]}"]
    return fill(
        "pipeline",
        dtype=torch_dtype(precision.weights_dtype),
        loss=indent(loss, 12),
        sharded="" if facts.splits_backward else fill("pipeline_stage") + "\n",
        exchanged="" if facts.is_v else fill("pipeline_twins") + "\n",
    )


def accelerate_notes(source: ExportSource) -> list[str]:
    """Notes on pipeline parallelism for a user's own script under Accelerate."""
    if not has_stages(source):
        return []
    return [
        f"pipeline_parallel={stages(source)}, as measured: Accelerate trains in no stages; take used, cut, the schedule, the mesh and "
        "the data's rank from train_snippet.py"
    ]


def torchtitan_mesh(source: ExportSource, strategy: Fsdp2Config) -> dict[str, Any]:
    """Fields of torchtitan's device mesh for pipeline parallelism, by name."""
    if not has_stages(source):
        return {}
    layers = _layers_per_stage(source, strategy)
    return {
        "pipeline_parallel_degree": strategy.pipeline_parallel,
        "pipeline_parallel_schedule": FACTS[strategy.pipeline_schedule].title,
        "pipeline_parallel_microbatch_size": source.config.micro_batch,
        **({"pipeline_parallel_layers_per_stage": layers} if layers is not None else {}),
    }


def torchtitan_virtual_stages(source: ExportSource, strategy: Fsdp2Config) -> int:
    """Number of pipeline stages per rank in torchtitan that comes as near as possible to the exported configuration."""
    several = _TORCHTITANS_VIRTUAL if strategy.pipeline_virtual_stages > 1 else 1
    return several if _layers_per_stage(source, strategy) is None else strategy.pipeline_virtual_stages


def _layers_per_stage(source: ExportSource, strategy: Fsdp2Config) -> int | None:
    """Number of layers per stage that makes torchtitan form the exported number of stages; None where torchtitan's
    default does so, or where no number does."""
    blocks, stage_count = (
        source.model_summary.pipeline_blocks,
        strategy.pipeline_parallel * strategy.pipeline_virtual_stages,
    )
    if blocks is None or strategy.pipeline_virtual_stages in (1, _TORCHTITANS_VIRTUAL):
        return None
    # torchtitan 0.3 (`pipeline_llm`): the number of stages is blocks plus two over layers per stage, rounded up.
    return next((layers for layers in range(1, blocks + 3) if -(-(blocks + 2) // layers) == stage_count), None)


def torchtitan_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on differences between torchtitan's pipeline parallelism and the measured one."""
    if not has_stages(source):
        return ()
    return (
        "pipeline_parallel: torchtitan keeps gathered parameters from the first backward to the last, weighs the embedding and the "
        "head as a block when it shares out the blocks, and its local batch is all micro batches of a step",
    )
