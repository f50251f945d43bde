"""Expert parallelism in exported files: lines of `train_snippet.py`, and notes for programs that cannot express it."""

from typing import Any

from shardtune.api_schemas.strategies import Fsdp2Config, expert_parallel
from shardtune.tuner.export import optimizers
from shardtune.tuner.export.quoting import literal
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill

IMPORTS = (
    "from torch.distributed.device_mesh import DeviceMesh, init_device_mesh",
    "from torch.distributed.tensor import Shard, distribute_tensor",
    "from torch.utils._python_dispatch import _disable_current_modes",
)


def size(source: ExportSource) -> int:
    """Number of ranks that divide the experts of a layer in the exported configuration."""
    return source.config.strategy.expert_ranks


def is_divided(source: ExportSource) -> bool:
    """Whether several ranks divide the experts of a layer in the exported configuration."""
    return size(source) > 1


def constants(source: ExportSource) -> list[str]:
    """Line of `train_snippet.py` that defines the number of expert parallel ranks; empty where experts are not
    divided."""
    if not is_divided(source):
        return []
    return [f"EXPERT_RANKS = {size(source)}  # neighbouring ranks that divide each layer's experts"]


def standard_modules(source: ExportSource) -> tuple[str, ...]:
    """Names of standard library modules that `train_snippet.py` imports for expert parallelism."""
    return ("dataclasses", "functools") if is_divided(source) else ()


def helpers(source: ExportSource) -> str:
    """Source of the functions that `train_snippet.py` defines for expert parallelism; empty where experts are not
    divided."""
    return fill("expert_parallel") if is_divided(source) else ""


def trainer(source: ExportSource, strategy: Fsdp2Config) -> dict[str, list[str]]:
    """Lines of the `Trainer` class in `train_snippet.py` that divide experts, build the optimizer and clip
    gradients."""
    if not is_divided(source):
        return {
            "divide": [],
            "updated": [f"self.optimizer = {_optimizer(source)}"],
            "average": [],
            "clip": ["torch.nn.utils.clip_grads_with_norm_(self.parameters, MAX_GRAD_NORM, norm)"],
        }
    return {
        # Experts are divided and sharded before the block around them, which would shard them over the whole mesh.
        "divide": _divide_lines(source, strategy),
        "updated": [
            f"self.optimizer = {_optimizer(source)}",
            # torch 2.13 has no operator over tensors of several meshes, so clipping takes groups by mesh.
            'self.divided = [p for p in self.parameters if "ep" in p.device_mesh.mesh_dim_names]',
        ],
        "average": [
            "for expert in self.divided:",
            "    expert.grad.to_local().div_(EXPERT_RANKS)  # the sum over these ranks, whose samples differ",
        ],
        "clip": [
            "for group in by_mesh(self.parameters):",
            "    torch.nn.utils.clip_grads_with_norm_(group, MAX_GRAD_NORM, norm)",
        ],
    }


def _optimizer(source: ExportSource) -> str:
    # After the loop over stages, `blocks` are those of the last stage alone.
    has_stages = source.config.strategy.stages > 1
    blocks = "[block for _, _, blocks, _ in parts for block in blocks]" if has_stages else "blocks"
    return optimizers.make(source, "self.parameters", blocks, is_divided(source))


def _divide_lines(source: ExportSource, strategy: Fsdp2Config) -> list[str]:
    shard_axes = {"dp_replicate": strategy.dp_replicate} if strategy.dp_replicate > 1 else {}
    shard_axes["expert_shard"] = strategy.dp_shard // strategy.expert_parallel
    axes = {"pp": strategy.pipeline_parallel} if strategy.pipeline_parallel > 1 else {}
    axes |= shard_axes | {"ep": strategy.expert_parallel}
    expert_facts = source.model_summary.experts or 1, source.model_summary.expert_width or 1
    axis = expert_parallel.sharded_axis(strategy.expert_parallel, strategy.dp_shard, *expert_facts)
    return [
        f"names = {literal(tuple(axes))}",
        f"experts = init_device_mesh(device.type, {tuple(axes.values())!r}, mesh_dim_names=names)",
        f'divided = divide_experts({"part" if strategy.pipeline_parallel > 1 else "model"}, experts["ep"])',
        'policy = dataclasses.replace(options["mp_policy"], cast_forward_inputs=False)',
        f'own = {{"mesh": experts[{literal(tuple(shard_axes))}], "mp_policy": policy}}',
        f'own["reshard_after_forward"] = {bool(strategy.reshard_after_forward)}',
        "for layer in divided:",
        f"    fully_shard(layer, **options | own, shard_placement_fn=lambda _: Shard({axis or 0}))",
        "    step_outside(layer)",
    ]


def prefetch(strategy: Fsdp2Config) -> list[str]:
    """Lines of the `Trainer` class in `train_snippet.py` that set FSDP2's prefetch."""
    forward, backward = strategy.forward_prefetch, strategy.backward_prefetch
    # Divided experts are units of their own: gathering a unit ahead must gather the experts in it, too.
    blocks = "unit" if strategy.blocks_per_unit > 1 else "[unit]"
    lines = []
    if forward:
        lines.append(f"    head.set_modules_to_forward_prefetch(sum(heads[i + 1 : i + 1 + {forward}], []))")
    if backward != 1 or strategy.pipeline_parallel > 1:
        lines.append(f"    ahead = sum(heads[max(0, i - {backward}) : i][::-1], [])")
        lines.append("    head.set_modules_to_backward_prefetch(ahead or [head])")
    if not lines:
        return []
    return [
        f"units = [{blocks} for unit in units]",
        "inside = [[layer for layer in divided if any(layer in block.modules() for block in unit)] for unit in units]",
        "heads = [[unit[0], *layers] for unit, layers in zip(units, inside, strict=True)]",
        "for i, (head, *_) in enumerate(heads):",
        *lines,
    ]


def norm(source: ExportSource, counted: str) -> str:
    """Python expression for the gradient norm of the named parameters in `train_snippet.py`."""
    if is_divided(source):
        return f"norm_of(by_mesh({counted}))"
    return f"torch.nn.utils.get_total_norm([p.grad for p in {counted}]).full_tensor()"


def accelerate_notes(source: ExportSource) -> list[str]:
    """Notes on expert parallelism for a user's own script under Accelerate."""
    if not is_divided(source):
        return []
    return [
        f"expert_parallel={size(source)}, as measured: Accelerate divides no experts; take divide_experts, its mesh, the groups of "
        "the optimizer and the norm from train_snippet.py"
    ]


def torchtitan_mesh(source: ExportSource) -> dict[str, Any]:
    """Fields of torchtitan's device mesh for expert parallelism, by name."""
    return {"expert_parallel_degree": size(source)} if is_divided(source) else {}


def torchtitan_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on differences between torchtitan's expert parallelism and the measured one."""
    if not is_divided(source):
        return ()
    return (
        "expert_parallel: torchtitan's routers add a bias that balances experts (load_balance_coeff); the trial's did not",
    )
