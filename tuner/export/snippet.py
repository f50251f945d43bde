"""`train_snippet.py`: a complete training script that does what the trial did, for its reader to take over."""

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, ZeroConfig
from shardtune.api_schemas.strategies.fsdp1 import HYBRID
from shardtune.tuner.export import trainers
from shardtune.tuner.export.launch import torchrun_options
from shardtune.tuner.export.source import ExportSource, torch_dtype
from shardtune.tuner.export.templates import fill, indent

_KEPT = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "_grouped_mm",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_fused_attention_overrideable",
)
"""Operators of `workers.rank.model.checkpointing`; a test holds the two lists together."""


def source(source: ExportSource) -> str:
    """The script's text."""
    workload, optimizer = source.workload, source.workload.optimizer
    strategy = source.config.strategy
    adamw = {
        "lr": optimizer.lr,
        "betas": (optimizer.beta1, optimizer.beta2),
        "eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
    }
    return fill(
        "train_snippet.py",
        model_name=source.study.spec.model.name,
        description=source.contender.description,
        figures=_figures(source),
        needs=" and ds_config.json" if isinstance(strategy, ZeroConfig) else "",
        command=f"torchrun {torchrun_options(source)} train_snippet.py --steps 10",
        standard=_standard_imports(source),
        imports=_imports(source),
        ranks=source.cluster.world_size,
        micro_batch=source.config.micro_batch,
        accumulation=source.accumulation,
        global_batch=workload.global_batch,
        sequence_length=workload.sequence_length,
        adamw=repr(adamw).replace("'", '"'),
        constants=_constants(source),
        seed=workload.seed,
        build=indent(_build(source), 4),
        checkpointing=_checkpointing(source),
        trainer=trainers.source(source),
        join=indent(_join(source), 4),
        leave=indent(_leave(source), 4),
    )


def _figures(source: ExportSource) -> str:
    contender, memory = source.contender, ""
    if contender.peak_allocated_gib is not None:
        memory = f", {contender.peak_allocated_gib:.3g} GiB allocated at the peak"
    runs = "1 run" if contender.runs == 1 else f"{contender.runs} runs"
    speed = f"{contender.tokens_per_s_per_gpu:,.0f} tokens/s/GPU"
    return f"Measured on {source.machines}: {speed}{memory} ({runs})."


def _standard_imports(source: ExportSource) -> str:
    names = ["argparse", "json", "os", "time"]
    names += ["sys"] if source.on_cpu else []
    names += ["contextlib"] if trainers.uses_no_sync(source) else []
    names += ["functools"] if source.config.activation_checkpointing == "selective" else []
    return "\n".join(f"import {name}" for name in sorted(names))


def _imports(source: ExportSource) -> str:
    strategy, config = source.config.strategy, source.config
    plain = ["import torch", "import torch.distributed as dist", "import transformers"]
    named: list[str] = []
    if isinstance(strategy, DdpConfig):
        named.append("from torch.nn.parallel import DistributedDataParallel")
        named += ["from torch.nn.utils import parametrize"] if source.is_mixed else []
    elif isinstance(strategy, Fsdp1Config):
        if strategy.sharding_strategy in HYBRID:
            named.append("from torch.distributed.device_mesh import init_device_mesh")
        names = ["CPUOffload", "FullyShardedDataParallel", "MixedPrecision", "ShardingStrategy"]
        names += ["BackwardPrefetch"] if strategy.backward_prefetch else []
        named.append(
            "\n".join(["from torch.distributed.fsdp import (", *(f"    {name}," for name in sorted(names)), ")"])
        )
    elif isinstance(strategy, Fsdp2Config):
        named.append("from torch.distributed.device_mesh import init_device_mesh")
        policy = "CPUOffloadPolicy" if strategy.cpu_offload else "OffloadPolicy"
        named.append(
            f"from torch.distributed.fsdp import {', '.join(sorted(['MixedPrecisionPolicy', policy, 'fully_shard']))}"
        )
    else:
        plain.insert(0, "import deepspeed")
        named += ["from deepspeed.ops.adam import DeepSpeedCPUAdam"] if strategy.offload_optimizer else []
        if strategy.stage == 3:
            named += ["from deepspeed.utils import set_z3_leaf_modules"] if source.profile.moe_class else []
            named.append("from transformers.integrations import HfDeepSpeedConfig")
    if config.activation_checkpointing == "full":
        named.append("from torch.utils.checkpoint import checkpoint")
    elif config.activation_checkpointing == "selective":
        named.append(
            "from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts"
        )
    return "\n".join([*plain, *sorted(named)])


def _constants(source: ExportSource) -> str:
    strategy, limit = source.config.strategy, source.workload.max_grad_norm
    lines = []
    if isinstance(strategy, ZeroConfig):
        lines.append('DS_CONFIG = Path(__file__).with_name("ds_config.json")')
        if source.on_cpu:
            lines.append(
                "deepspeed.ops.__compatible_ops__ = {}  # else it compiles collectives that training does not use"
            )
        if strategy.stage == 3:
            lines.append(
                "SHARDED = HfDeepSpeedConfig(str(DS_CONFIG))  # while it lives, transformers builds models sharded"
            )
    else:
        lines.append(f"MAX_GRAD_NORM = {limit}" if limit is not None else 'MAX_GRAD_NORM = float("inf")')
    if isinstance(strategy, Fsdp1Config | Fsdp2Config) or trainers.prepares_blocks(source):
        lines.append(f'BLOCKS = "{source.block_list}"  # the list of repeated {source.profile.block_class}')
    return "\n".join(lines)


def _build(source: ExportSource) -> list[str]:
    call = "model = transformers.AutoModelForCausalLM.from_config("
    options = (
        f'    config, attn_implementation="{source.workload.attention}", dtype=torch.float32, trust_remote_code=False'
    )
    if isinstance(source.config.strategy, Fsdp1Config | Fsdp2Config):
        # Weights are made while or after sharding: no rank ever holds the whole model.
        return ['with torch.device("meta"):', f"    {call}", f"    {options}", "    )"]
    return [call, options, ")"]


def _checkpointing(source: ExportSource) -> str:
    mode, strategy = source.config.activation_checkpointing, source.config.strategy
    parts = []
    if mode != "none":
        kept = {"kept": indent([f'"{name}",' for name in _KEPT], 8)} if mode == "selective" else {}
        parts.append(fill(f"checkpointing_{mode}", **kept))
    if isinstance(strategy, DdpConfig) and source.is_mixed:
        parts.append(fill("compute_in", compute_dtype=torch_dtype(source.workload.recipe.compute_dtype)))
    if isinstance(strategy, Fsdp1Config):
        parts.append(fill("materialize"))
    return "".join(parts).removesuffix("\n")


def _leave(source: ExportSource) -> list[str]:
    if not source.on_cpu:
        return ["dist.destroy_process_group()"]
    return [
        "sys.stdout.flush()",
        "# Gloo's threads can abort the process while the interpreter winds down (torch 2.13 on a busy machine, now and",
        "# then), and DeepSpeed and meshes keep them alive: leave without winding down.",
        "os._exit(0)",
    ]


def _join(source: ExportSource) -> list[str]:
    lines = ['device = torch.device("cpu")', "torch.set_num_threads(max(1, (os.cpu_count() or 1) // RANKS))"]
    if not source.on_cpu:
        lines = ['device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))', "torch.cuda.set_device(device)"]
        lines.append('dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)')
    else:
        lines += ['os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")'] if source.cluster.nodes == 1 else []
        lines.append('dist.init_process_group("gloo")')
    if isinstance(source.config.strategy, ZeroConfig):
        lines.append(
            "deepspeed.init_distributed(dist_backend=dist.get_backend(), dist_init_required=False, verbose=False)"
        )
    return lines
