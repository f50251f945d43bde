"""What the user runs today, as a configuration of ours: given in our words, or as a DeepSpeed JSON as it is.

A key that contradicts the workload is an error naming both; a key that does nothing in a trial is a note.
"""

import math
from typing import NamedTuple

from pydantic import JsonValue, ValidationError

from api_schemas.hardware import Cluster
from api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from api_schemas.workload import Recipe, Workload, gradient_accumulation
from tuner.deepspeed_json import SILENT_KEYS, Section, read_zero

_SHORT = {"float32": "fp32", "bfloat16": "bf16"}
_SPELLINGS = {"fp32": "fp32", "float32": "fp32", "torch.float32": "fp32", "float": "fp32"}
_SPELLINGS |= {"bf16": "bf16", "bfloat16": "bf16", "torch.bfloat16": "bf16"}


class Resolved(NamedTuple):
    """The baseline as a configuration, and what a reader should know about the way there."""

    config: TrialConfig | None
    notes: tuple[str, ...] = ()


def resolve(
    baseline: TrialConfig | dict[str, JsonValue] | None, workload: Workload, cluster: Cluster
) -> TrialConfig | None:
    """The baseline as a configuration; None where none was given.

    Raises:
        ValueError: it contradicts the workload, or cannot run on the cluster; names both sides.
    """
    return resolve_with_notes(baseline, workload, cluster).config


def resolve_with_notes(
    baseline: TrialConfig | dict[str, JsonValue] | None, workload: Workload, cluster: Cluster
) -> Resolved:
    """The same as `resolve`, with the keys that are ignored and the conversions that were made.

    Raises:
        ValueError: as `resolve`.
    """
    if baseline is None:
        return Resolved(None)
    notes: list[str] = []
    if isinstance(baseline, TrialConfig):
        config = baseline
    elif "strategy" in baseline or "kind" in baseline:
        config = _ours(baseline)
    else:
        config = _from_deepspeed(Section(baseline, "baseline"), workload, cluster, notes)
    _check_fits(config, workload, cluster)
    return Resolved(config, tuple(notes))


def _ours(values: dict[str, JsonValue]) -> TrialConfig:
    """Read again what the study's schema could only take as a plain object, for its message."""
    try:
        return TrialConfig.model_validate(values if "strategy" in values else {"strategy": values})
    except ValidationError as error:
        raise _in_words(error, "baseline", "docs/search-space.md") from error


def _in_words(error: ValidationError, path: str, where: str) -> ValueError:
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in (path, *first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return ValueError(f"{path}: {message}")
    return ValueError(f"{field} ({first['input']!r}): {message}; see {where} for its fields")


def _check_fits(config: TrialConfig, workload: Workload, cluster: Cluster) -> None:
    strategy = config.strategy
    if (
        isinstance(strategy, Fsdp1Config | Fsdp2Config)
        and strategy.dp_replicate * strategy.dp_shard != cluster.world_size
    ):
        raise ValueError(
            f"baseline mesh dp_replicate × dp_shard ({strategy.dp_replicate} × {strategy.dp_shard}) must equal the "
            f"cluster's {cluster.world_size} ranks; try dp_replicate 1, dp_shard {cluster.world_size}"
        )
    if isinstance(strategy, ZeroConfig):
        hpz = strategy.zero_hpz_partition_size
        if cluster.world_size % hpz:
            raise ValueError(f"baseline zero_hpz_partition_size ({hpz}) must divide {cluster.world_size} ranks; use 1")
        offloads = [offload for offload in (strategy.offload_optimizer, strategy.offload_param) if offload]
        if cluster.device == "cpu" and any(offload.device == "nvme" for offload in offloads):
            raise ValueError("baseline offload device ('nvme') does not work on CPU ranks; use 'cpu' or drop it")
    gradient_accumulation(workload.global_batch, config.micro_batch, cluster.world_size)


def _from_deepspeed(top: Section, workload: Workload, cluster: Cluster, notes: list[str]) -> TrialConfig:
    _check_precision(top, workload.recipe, notes)
    _check_clipping(top, workload, notes)
    _check_optimizer(top.section("optimizer"), workload, notes)
    _check_scaling(top)
    micro_batch = _micro_batch(top, workload, cluster, notes)
    if "scheduler" in top:
        notes.append("baseline.scheduler is not applied: trials train at a constant learning rate")
    if "activation_checkpointing" in top:
        notes.append(
            "baseline.activation_checkpointing is not applied: DeepSpeed's section acts only in models that call "
            "deepspeed.checkpointing, which those of transformers do not"
        )
    strategy = _strategy(top.section("zero_optimization"), workload.recipe, notes)
    unknown = [name for name in top.unread() if name.rpartition(".")[2] not in SILENT_KEYS]
    notes += [f"{name} is not applied" for name in unknown]
    return TrialConfig(strategy=strategy, micro_batch=micro_batch)


def _strategy(zero: Section, recipe: Recipe, notes: list[str]) -> ZeroConfig | DdpConfig:
    stage = zero.integer("stage") or 0
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"{zero.name('stage')} ({stage}) must be 1, 2 or 3; use one of them")
    if stage:
        try:
            strategy, ineffective = read_zero(zero)
        except ValidationError as error:
            raise _in_words(error, "baseline.zero_optimization", "DeepSpeed's configuration JSON") from error
        notes += ineffective
        return strategy
    if recipe.compute_dtype != "float32":
        raise ValueError(
            f"{zero.name('stage')} (0) under recipe ({recipe.name!r}) trains something else in DeepSpeed 0.19.8 than "
            "every other strategy; use stage 1, 2 or 3, or give a DDP baseline: "
            '{"strategy": {"kind": "ddp"}, "micro_batch": …}'
        )
    notes.append(
        "baseline.zero_optimization.stage 0 is measured as PyTorch DDP: the same training in fp32 (full replicas, one "
        "all-reduce per step), not DeepSpeed's own engine"
    )
    return DdpConfig(grad_sync="last")


def _check_precision(top: Section, recipe: Recipe, notes: list[str]) -> None:
    ours = f"the workload's recipe ({recipe.name!r}) computes in {recipe.compute_dtype}"
    fp16 = top.section("fp16")
    if fp16.flag("enabled"):
        raise ValueError(f"{fp16.name('enabled')} (true), but {ours}; set it to false, no recipe uses fp16")
    key = "bf16" if "bf16" in top else "bfloat16"
    bf16 = top.section(key)
    enabled = bf16.flag("enabled")
    if enabled is None and recipe.compute_dtype == "bfloat16":
        notes.append(f"baseline.bf16.enabled is absent or auto; measured as true, since {ours}")
    elif enabled is not None and enabled != (recipe.compute_dtype == "bfloat16"):
        remedy = "recipe 'bf16-mixed'" if enabled else "recipe 'fp32'"
        raise ValueError(
            f"{bf16.name('enabled')} ({str(enabled).lower()}), but {ours}; change one of them, e.g. {remedy}"
        )
    for name in ("bf16_master_weights_and_grads", "bf16_optimizer_states"):
        if bf16.flag(name) and recipe.master_dtype != "bfloat16":
            raise ValueError(
                f"{bf16.name(name)} (true), but the workload's recipe ({recipe.name!r}) keeps masters in "
                f"{recipe.master_dtype}; set it to false"
            )
    if top.section("torch_autocast").flag("enabled"):
        raise ValueError(f"baseline.torch_autocast.enabled (true), but {ours} without autocast; set it to false")
    reduce_dtype = _SHORT[recipe.reduce_dtype]
    types = top.section("data_types")
    for section, name in ((top, "communication_data_type"), (types, "grad_accum_dtype")):
        given = section.text(name)
        if given is not None and _SPELLINGS.get(given.lower(), given) != reduce_dtype:
            raise ValueError(
                f"{section.name(name)} ({given!r}), but the workload's recipe ({recipe.name!r}) accumulates and reduces "
                f"gradients in {reduce_dtype}; use {reduce_dtype!r} or drop it"
            )


def _check_clipping(top: Section, workload: Workload, notes: list[str]) -> None:
    given, ours = top.number("gradient_clipping"), workload.max_grad_norm or 0.0
    if given is None and ours:
        notes.append(f"baseline.gradient_clipping is absent or auto; measured with the workload's max_grad_norm {ours}")
    elif given is not None and not math.isclose(given, ours):
        raise ValueError(
            f"baseline.gradient_clipping ({given}), but the workload's max_grad_norm is {workload.max_grad_norm}; "
            "make them equal, or drop gradient_clipping"
        )


def _check_optimizer(optimizer: Section, workload: Workload, notes: list[str]) -> None:
    kind = optimizer.text("type")
    if kind is not None and kind.lower() not in ("adam", "adamw"):
        raise ValueError(
            f"{optimizer.name('type')} ({kind!r}), but the workload trains with AdamW; use AdamW or drop it"
        )
    params, ours = optimizer.section("params"), workload.optimizer
    weight_decay = params.number("weight_decay")
    if params.flag("adam_w_mode") is False and weight_decay:
        raise ValueError(
            f"{params.name('adam_w_mode')} (false) decays weights through the gradient, but the workload's AdamW does "
            "not; set it to true"
        )
    betas = params.get("betas")
    if betas is not None and (not isinstance(betas, list) or len(betas) != 2):
        raise ValueError(f"{params.name('betas')} ({betas!r}) must be two numbers; e.g. [{ours.beta1}, {ours.beta2}]")
    pair = Section(dict(zip(("betas[0]", "betas[1]"), betas or (), strict=False)), params.name("")[:-1])
    for section, key, name, wanted in (
        (params, "lr", "lr", ours.lr),
        (pair, "betas[0]", "beta1", ours.beta1),
        (pair, "betas[1]", "beta2", ours.beta2),
        (params, "eps", "eps", ours.eps),
        (params, "weight_decay", "weight_decay", ours.weight_decay),
    ):
        given = section.number(key)
        if given is not None and not math.isclose(given, wanted, rel_tol=1e-9):
            raise ValueError(
                f"{section.name(key)} ({given}), but the workload's optimizer.{name} is {wanted}; make them equal, or "
                "drop the optimizer section"
            )
    notes += [f"{name} is not applied" for name in (*optimizer.unread(), *params.unread())]


def _check_scaling(top: Section) -> None:
    """Keys that change the gradient's scale, or split the model in ways a study does not."""
    if (operation := top.text("gradient_allreduce_op")) not in (None, "mean", "avg", "average"):
        raise ValueError(
            f"baseline.gradient_allreduce_op ({operation!r}), but the workload's loss is averaged over the global batch; "
            "drop it"
        )
    for section, key in (("tensor_parallel", "autotp_size"), ("expert_parallel", "autoep_size")):
        size = top.section(section).integer(key)
        if size is not None and size > 1:
            raise ValueError(f"baseline.{section}.{key} ({size}) is not offered; use 1 or drop the section")


def _micro_batch(top: Section, workload: Workload, cluster: Cluster, notes: list[str]) -> int:
    total = top.integer("train_batch_size")
    micro = top.integer("train_micro_batch_size_per_gpu")
    accumulation = top.integer("gradient_accumulation_steps")
    world, ours = cluster.world_size, workload.global_batch
    for name, value in (("train_micro_batch_size_per_gpu", micro), ("gradient_accumulation_steps", accumulation)):
        if value is not None and value < 1:
            raise ValueError(f"baseline.{name} ({value}) must be at least 1; drop it to let the workload decide")
    if total is not None and total != ours:
        raise ValueError(
            f"baseline.train_batch_size ({total}), but the workload's global_batch is {ours}; make them equal"
        )
    if micro is None and accumulation is None:
        if total is None:
            notes.append("baseline gives no batch size; measured at micro batch 1")
            return 1
        accumulation = 1
    if micro is None:
        step = world * (accumulation or 1)
        if ours % step:
            raise ValueError(
                f"baseline.gradient_accumulation_steps ({accumulation}) × {world} ranks must divide the workload's "
                f"global_batch ({ours}); give train_micro_batch_size_per_gpu, or another global_batch"
            )
        return ours // step
    if accumulation is not None and micro * accumulation * world != ours:
        raise ValueError(
            f"baseline.train_micro_batch_size_per_gpu × gradient_accumulation_steps × ranks ({micro} × {accumulation} × "
            f"{world} = {micro * accumulation * world}), but the workload's global_batch is {ours}; make them equal"
        )
    return micro
