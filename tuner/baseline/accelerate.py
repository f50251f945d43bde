"""Reading of Accelerate's configuration file (YAML or JSON) as a baseline, as Accelerate 1.15 reads it."""

from pydantic import JsonValue

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, TrialConfig
from shardtune.api_schemas.strategies.fsdp1 import sync_policies
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline import deepspeed, fsdp
from shardtune.tuner.baseline import precision as precisions
from shardtune.tuner.baseline.section import Section

KEYS = frozenset(["distributed_type", "compute_environment"])
"""Keys by which an Accelerate configuration file is recognised: every such file has at least one of them."""
_SILENT = frozenset(
    [
        "compute_environment",
        "debug",
        "downcast_bf16",
        "gpu_ids",
        "machine_rank",
        "main_process_ip",
        "use_cpu",
        "main_process_port",
        "main_training_function",
        "rdzv_backend",
        "same_network",
        "mpirun_config",
        "tpu_env",
        "tpu_use_cluster",
        "tpu_use_sudo",
        "tpu_vm",
        "tpu_name",
        "tpu_zone",
        "command_file",
        "commands",
    ]
)
_DEFAULT_STAGE = 2
"""Stage of ZeRO that Accelerate's plugin uses where its file names neither a stage nor a DeepSpeed JSON."""
_REPLICATED = ("multi_gpu", "multi_cpu", "no", "none")


def read(top: Section, workload: Workload, cluster: Cluster, notes: list[str]) -> TrialConfig:
    """Read a baseline configuration from an Accelerate file. A key `micro_batch` beside Accelerate's own keys gives the
    micro batch, for which the file has no key.

    Raises:
        ValueError: a contradiction with the workload or the cluster, or a kind of training a study does not have.
    """
    kind = top.word("distributed_type") or "no"
    for key, expected in (("num_processes", cluster.world_size), ("num_machines", cluster.nodes)):
        stated = top.integer(key)
        if stated is not None and stated != expected:
            raise ValueError(f"{top.name(key)} ({stated}), but the cluster has {expected}; make them equal, or drop it")
    mixed = _precision(top, workload, notes)
    precisions.check_positive(top, "micro_batch")
    if kind == "deepspeed":
        config = _deepspeed(top, mixed, workload, cluster, notes)
    else:
        config = _torch(top, kind, workload, cluster, notes)
    fp8, key = top.section("fp8_config"), "enable_fsdp_float8_all_gather"
    if top.word("mixed_precision") == "fp8" and fp8.flag(key) is not False:
        config = fsdp.with_float8_gather(config, f"{fp8.name(key)} is true by file or default", notes)
    micro_batch = top.integer("micro_batch")
    if micro_batch is not None:
        config = config.model_copy(update={"micro_batch": micro_batch})
    elif kind != "deepspeed":
        notes.append(
            "baseline gives no batch size; measured at micro batch 1: write "
            '{"file": "accelerate.yaml", "micro_batch": …} for another'
        )
    if top.section("dynamo_config").word("dynamo_backend") not in (None, "no"):
        notes.append(f"{top.name('dynamo_config')} is not applied: measured without torch.compile")
    if top.flag("enable_cpu_affinity") and cluster.device != "cpu":
        notes.append(f"{top.name('enable_cpu_affinity')} is not applied: measured with ranks on any core")
    notes += [f"{name} is not applied" for name in top.unread(_SILENT)]
    return with_sync(config, workload, cluster, notes)


def autocasts(top: Section) -> bool:
    """Whether Accelerate trains this file with bf16 under DDP, where it uses autocast and casts no weights."""
    return top.word("mixed_precision") == "bf16" and (top.word("distributed_type") or "no") in _REPLICATED


def _precision(top: Section, workload: Workload, notes: list[str]) -> str | None:
    """Name of the file's mixed precision, checked against the workload; None where the file has none."""
    mixed, precision = top.word("mixed_precision"), workload.precision
    if mixed == "fp8":
        _check_float8(top, workload, notes)
        return "bf16"
    if mixed not in (None, "no", "bf16", "fp16"):
        raise ValueError(f"{top.name('mixed_precision')} ({mixed!r}) must be no, bf16 or fp16; use one of them")
    if mixed == "fp16" or precision.scales_loss:
        is_float16 = None if mixed is None else mixed == "fp16"
        precisions.check_fp16(f"{top.name('mixed_precision')} fp16", is_float16, precision, notes)
        return mixed
    bf16 = None if mixed is None else mixed == "bf16"
    if bf16 is not None or precision.computes_in_bfloat16:
        remedy = precisions.ddp_name(workload.adapter) if autocasts(top) else "bf16-mixed"
        # Beside DeepSpeed it switches DeepSpeed's own bf16, whose section says how states are kept.
        is_deepspeed = top.word("distributed_type") == "deepspeed"
        check = precisions.check_bf16 if is_deepspeed else precisions.check_mixed
        check(f"{top.name('mixed_precision')} bf16", bf16, precision, notes, remedy)
    return mixed


def _check_float8(top: Section, workload: Workload, notes: list[str]) -> None:
    """Check an Accelerate file with fp8 against the workload. The workload's precision must be that of all operations
    except the float8 matrix products: bfloat16.

    Raises:
        ValueError: the workload has no float8 with this scaling, or the file names another library than torchao.
    """
    name, section = top.name("mixed_precision"), top.section("fp8_config")
    backend = section.word("backend")
    if backend is not None and backend != "ao":
        raise ValueError(
            f"{section.name('backend')} ({backend!r}) is not measured; use AO (torchao), or leave out the baseline"
        )
    if workload.float8 != "tensorwise":
        stated = "none" if workload.float8 is None else repr(workload.float8)
        raise ValueError(
            f"{name} ('fp8') scales tensorwise by torchao, but the workload's float8 is {stated}; state float8 'tensorwise', or "
            "use bf16"
        )
    if not workload.precision.computes_in_bfloat16:
        workload_side = precisions.describe_precision(workload.precision)
        raise ValueError(
            f"{name} ('fp8') computes the rest in bfloat16, but {workload_side}; use precision 'bf16-mixed'"
        )
    if section.flag("pad_inner_dim") is not False:
        notes.append(f"{section.name('pad_inner_dim')} is true by file or default; measured as false")
    notes.append(
        "Accelerate's fp8 leaves out the model's first and last linear layer; measured without the output head alone"
    )


def _torch(top: Section, kind: str, workload: Workload, cluster: Cluster, notes: list[str]) -> TrialConfig:
    if workload.max_grad_norm is not None:
        notes.append(
            f"clipping stands in the script; measured with the workload's max_grad_norm {workload.max_grad_norm}"
        )
    if kind == "fsdp":
        section = Section(fsdp.without_prefix(top.section("fsdp_config").values()), top.name("fsdp_config"))
        if "auto_wrap_policy" not in section:
            notes.append(
                f"{section.name('auto_wrap_policy')} is absent, which means the whole model as one unit in Accelerate; measured "
                "with each repeated block as a unit: write TRANSFORMER_BASED_WRAP"
            )
        fsdp.note_precision(workload.precision, "Accelerate", notes)
        return fsdp.read(section, 1, _mesh(top), cluster, notes)
    if kind not in _REPLICATED:
        raise ValueError(
            f"{top.name('distributed_type')} ({kind!r}) is not offered; use MULTI_GPU, FSDP or DEEPSPEED, or another baseline"
        )
    precisions.note_autocast("Accelerate", workload, notes)
    _mesh(top)
    return TrialConfig(strategy=DdpConfig())


def _mesh(top: Section) -> tuple[int, int] | None:
    section = top.section("parallelism_config")
    for axis in ("tp_size", "cp_size", "sp_size"):
        size = section.integer(f"parallelism_config_{axis}")
        if size is not None and size > 1:
            raise ValueError(
                f"{section.name(axis)} ({size}) is not offered: all ranks are data-parallel; use 1 or drop it"
            )
    replicate, shard = (section.integer(f"parallelism_config_dp_{axis}_size") for axis in ("replicate", "shard"))
    return (replicate or 1, shard or 1) if replicate or shard else None


def _deepspeed(top: Section, mixed: str | None, workload: Workload, cluster: Cluster, notes: list[str]) -> TrialConfig:
    section, micro_batch = top.section("deepspeed_config"), top.integer("micro_batch")
    document = section.get("deepspeed_config_file")
    # Accelerate 1.15 takes the file and ignores the keys beside it.
    if document is not None:
        for key in ("zero_stage", "gradient_accumulation_steps", "gradient_clipping"):
            if key in section:
                notes.append(f"{section.name(key)} has no effect beside deepspeed_config_file")
        return deepspeed.read(section.section("deepspeed_config_file"), workload, cluster, notes, micro_batch)
    stage = section.integer("zero_stage")
    if stage is None:
        stage = _DEFAULT_STAGE
        notes.append(f"{section.name('zero_stage')} is absent; measured with Accelerate's default {stage}")
    zero: dict[str, JsonValue] = {"stage": stage}
    for kind in ("optimizer", "param"):
        device = section.word(f"offload_{kind}_device")
        if device not in (None, "none"):
            zero[f"offload_{kind}"] = {"device": device}
    values: dict[str, JsonValue] = {
        "zero_optimization": {key: value for key, value in zero.items() if value is not None}
    }
    for key in ("gradient_accumulation_steps", "gradient_clipping"):
        values[key] = section.get(key)
    if mixed is not None:
        values["bf16"] = {"enabled": mixed == "bf16"}
        values["fp16"] = {"enabled": mixed == "fp16"}
    silent = frozenset(
        ["zero3_init_flag", "zero3_save_16bit_model", "deepspeed_multinode_launcher", "deepspeed_hostfile"]
    )
    notes += [f"{name} is not applied" for name in section.unread(silent | {"deepspeed_moe_layer_cls_names"})]
    return deepspeed.read(Section(values, section.name("")[:-1]), workload, cluster, notes, micro_batch)


def with_sync(config: TrialConfig, workload: Workload, cluster: Cluster, notes: list[str]) -> TrialConfig:
    """Copy of the baseline configuration in which FSDP1 synchronises gradients as Accelerate would."""
    strategy = config.strategy
    if not isinstance(strategy, Fsdp1Config):
        return config
    # `accelerator.accumulate` reduces once; FSDP1 trains the precision that way only where the dtypes allow it.
    accumulation = config.accumulation(workload.global_batch, cluster.world_size)
    policies = sync_policies(strategy.cpu_offload, workload.precision)
    if accumulation == 1 or not policies:
        return config
    if policies[-1] == "every":
        notes.append(
            "under no_sync FSDP1 adds micro batches up in bfloat16; measured with a reduction for each of them"
        )
    return config.model_copy(update={"strategy": strategy.model_copy(update={"grad_sync": policies[-1]})})
