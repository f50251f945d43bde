"""Reading of a user's DeepSpeed JSON as a baseline, as DeepSpeed 0.19.8 reads it."""

import difflib

from pydantic import ValidationError

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.adapters import quantization_of
from shardtune.api_schemas.training.optimizers import AdamW
from shardtune.api_schemas.training.workload import Precision, Workload
from shardtune.tuner.baseline import loss_scale
from shardtune.tuner.baseline import precision as precisions
from shardtune.tuner.baseline.section import Section, in_words
from shardtune.tuner.baseline.zero import read_zero

_SILENT_KEYS = frozenset(
    [
        "steps_per_print",
        "wall_clock_breakdown",
        "memory_breakdown",
        "dump_state",
        "tensorboard",
        "wandb",
        "csv_monitor",
        "comet",
        "monitor_config",
        "flops_profiler",
        "comms_logger",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "checkpoint",
        "timers",
        "log_level",
        "aio",
        "nebula",
        "datastates",
        "load_universal_checkpoint",
        "disable_allgather",
    ]
)
"""Keys of a DeepSpeed JSON on logging, checkpoint files and permissions, which change neither a trial's training nor
its speed."""
_SECTIONS = (
    "zero_optimization",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "optimizer",
    "scheduler",
    "bf16",
    "bfloat16",
    "fp16",
    "activation_checkpointing",
    "communication_data_type",
    "data_types",
    "torch_autocast",
    "prescale_gradients",
    "gradient_predivide_factor",
)
"""Known sections of a DeepSpeed JSON, compared with an unknown section's name to find a misspelling."""
_FURTHER_SECTIONS = ("gradient_allreduce_op", "tensor_parallel", "expert_parallel")
"""Further known sections of a DeepSpeed JSON. They are left out when a misspelt name is compared, as nobody would
misspell another name into one of these."""
_CLOSE = 0.85
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_SPELLINGS = {"fp32": "fp32", "float32": "fp32", "torch.float32": "fp32", "float": "fp32"}
_SPELLINGS |= {"bf16": "bf16", "bfloat16": "bf16", "torch.bfloat16": "bf16"}


def read(
    top: Section, workload: Workload, cluster: Cluster, notes: list[str], micro_batch: int | None = None
) -> TrialConfig:
    """Read a baseline configuration from a whole DeepSpeed JSON. `micro_batch`: micro batch of the file that contains
    the JSON, if any.

    Raises:
        ValueError: a contradiction with the workload (the message names both values), an unknown section, or a value
            that DeepSpeed would reject.
    """
    _check_names(top)
    _check_precision(top, workload, notes)
    precisions.check_clipping(top, "gradient_clipping", workload, notes)
    _check_optimizer(top.section("optimizer"), workload, notes)
    _check_scaling(top)
    micro_batch = _micro_batch(top, workload, cluster, notes, micro_batch)
    if "scheduler" in top:
        notes.append(f"{top.name('scheduler')} is not applied: trials train at a constant learning rate")
    if "activation_checkpointing" in top:
        notes.append(
            f"{top.name('activation_checkpointing')} is not applied: DeepSpeed's section acts only in models that call "
            "deepspeed.checkpointing, which those of transformers do not"
        )
    strategy = _strategy(top.section("zero_optimization"), workload.precision, notes)
    if top.flag("zero_force_ds_cpu_optimizer") is False and getattr(strategy, "offload_optimizer", None) is not None:
        name = top.name("zero_force_ds_cpu_optimizer")
        notes.append(f"{name} (false) is not applied: offloaded states are stepped by DeepSpeed's own CPU Adam")
    _note_clocks(top, notes)
    notes += [f"{name} is not applied" for name in top.unread(_SILENT_KEYS)]
    return TrialConfig(strategy=strategy, micro_batch=micro_batch)


def _note_clocks(top: Section, notes: list[str]) -> None:
    """Add a note for each switch with which DeepSpeed waits for the GPU in order to measure."""
    switches = [(top, "wall_clock_breakdown")]
    switches += [(top.section(name), "enabled") for name in ("flops_profiler", "comms_logger")]
    for section, name in switches:
        if section.flag(name):
            notes.append(
                f"{section.name(name)} (true) is not applied: with it DeepSpeed waits for the GPU in each micro batch, which "
                "trials do not"
            )


def _strategy(zero: Section, precision: Precision, notes: list[str]) -> ZeroConfig | DdpConfig:
    stage = zero.integer("stage") or 0
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"{zero.name('stage')} ({stage}) must be 1, 2 or 3; use one of them")
    if stage:
        try:
            strategy, ineffective = read_zero(zero)
        except ValidationError as error:
            raise in_words(error, zero.name("")[:-1], "DeepSpeed's configuration JSON") from error
        notes += ineffective
        return strategy
    # DeepSpeed's stage 0 has 16-bit training of its own, which no other strategy shares, so speeds would not compare.
    if not precision.has_float32_weights:
        raise ValueError(
            f"{zero.name('stage')} (0) under precision ({precision.name!r}) trains something else in DeepSpeed 0.19.8 than "
            "every other strategy; use stage 1, 2 or 3, or give a DDP baseline: "
            '{"strategy": {"kind": "ddp"}, "micro_batch": …}'
        )
    notes.append(
        f"{zero.name('stage')} 0 is measured as PyTorch DDP: the same training in {precision.name} (full replicas, one "
        "all-reduce per step), not DeepSpeed's own engine"
    )
    return DdpConfig(grad_sync="last")


def _check_precision(top: Section, workload: Workload, notes: list[str]) -> None:
    precision = workload.precision
    fp16 = top.section("fp16")
    precisions.check_fp16(fp16.name("enabled"), fp16.flag("enabled"), precision, notes)
    if precision.scales_loss:
        loss_scale.check(top, fp16, precision, notes)
    bf16 = top.section("bf16" if "bf16" in top else "bfloat16")
    if precision.autocast:
        _check_autocast(top, bf16.flag("enabled"), precision, notes)
    else:
        precisions.check_bf16(top.section("bf16").name("enabled"), bf16.flag("enabled"), precision, notes)
    for name in ("bf16_master_weights_and_grads", "bf16_optimizer_states"):
        if bool(bf16.flag(name)) != precision.has_low_states:
            stated = "absent" if bf16.flag(name) is None else str(bf16.flag(name)).lower()
            remedy = (
                "set it to true, or use precision 'bf16-mixed'"
                if precision.has_low_states
                else "set it to false, or use precision 'bf16-true'"
            )
            raise ValueError(
                f"{bf16.name(name)} ({stated}), but the workload's precision ({precision.name!r}) keeps masters in "
                f"{precision.master_dtype}; {remedy}"
            )
    autocast = top.section("torch_autocast")
    if autocast.flag("enabled") and not precision.autocast:
        remedy = ", or use precision 'bf16-autocast'" if quantization_of(workload.adapter) is None else ""
        workload_side = precisions.describe_precision(precision)
        raise ValueError(
            f"{autocast.name('enabled')} (true), but {workload_side} without autocast; set it to false{remedy}"
        )
    reduce_dtype = _SHORT[precision.reduce_dtype]
    for section, name in ((top, "communication_data_type"), (top.section("data_types"), "grad_accum_dtype")):
        dtype = section.text(name)
        if dtype is not None and _SPELLINGS.get(dtype.lower(), dtype) != reduce_dtype:
            raise ValueError(
                f"{section.name(name)} ({dtype!r}), but the workload's precision ({precision.name!r}) accumulates and reduces "
                f"gradients in {reduce_dtype}; use {reduce_dtype!r} or drop it"
            )


def _check_autocast(top: Section, casts_weights: bool | None, precision: Precision, notes: list[str]) -> None:
    """Check the section `torch_autocast` of a DeepSpeed JSON against the workload's precision."""
    section, workload_side = top.section("torch_autocast"), f"the workload's precision ({precision.name!r})"
    if casts_weights:
        raise ValueError(
            f"{top.section('bf16').name('enabled')} (true) casts weights, but {workload_side} keeps them in {precision.master_dtype} under "
            "autocast; use precision 'bf16-mixed', or torch_autocast"
        )
    enabled, dtype = section.flag("enabled"), section.text("dtype")
    if enabled is None:
        notes.append(
            f"{section.name('enabled')} is absent; measured as true, since {workload_side} computes under autocast"
        )
    elif not enabled:
        raise ValueError(
            f"{section.name('enabled')} (false), but {workload_side} computes under autocast; set it to true"
        )
    elif _SPELLINGS.get((dtype or "").lower()) != _SHORT[precision.compute_dtype]:
        raise ValueError(
            f"{section.name('dtype')} ({dtype!r}), but {workload_side} computes in {precision.compute_dtype}; use it"
        )
    # DeepSpeed's defaults are float16, and gradients of linear layers in the lower dtype.
    if enabled and section.get("lower_precision_safe_modules") != []:
        raise ValueError(
            f"{section.name('lower_precision_safe_modules')} ({section.get('lower_precision_safe_modules')!r}): gradients of "
            f"these modules (by default the linear layers) are reduced in {precision.compute_dtype}, but {workload_side} reduces in "
            f"{precision.reduce_dtype}; write []"
        )


def _check_optimizer(optimizer: Section, workload: Workload, notes: list[str]) -> None:
    kind = optimizer.text("type")
    adam = workload.optimizer if isinstance(workload.optimizer, AdamW) else AdamW()
    # Another optimizer of the workload is no AdamW, by whatever name the file calls it.
    known = ("adam", "adamw") if adam is workload.optimizer else ()
    if kind is not None and kind.lower() not in known:
        remedy = "use AdamW or drop it" if known else "drop it"
        raise ValueError(
            f"{optimizer.name('type')} ({kind!r}), but the workload trains with {workload.optimizer.title}; {remedy}"
        )
    params = optimizer.section("params")
    if params.flag("adam_w_mode") is False and params.number("weight_decay"):
        raise ValueError(
            f"{params.name('adam_w_mode')} (false) decays weights through the gradient, but the workload's AdamW does "
            "not; set it to true"
        )
    betas = params.get("betas")
    if betas is not None and (not isinstance(betas, list) or len(betas) != 2):
        raise ValueError(f"{params.name('betas')} ({betas!r}) must be two numbers; e.g. [{adam.beta1}, {adam.beta2}]")
    pair = Section(dict(zip(("betas[0]", "betas[1]"), betas or (), strict=False)), params.name("")[:-1])
    fields = [(params, key, key) for key in ("lr", "eps", "weight_decay")]
    precisions.check_adamw([*fields, (pair, "betas[0]", "beta1"), (pair, "betas[1]", "beta2")], workload)
    notes += [f"{name} is not applied" for name in (*optimizer.unread(), *params.unread())]


def _check_scaling(top: Section) -> None:
    """Check keys of a DeepSpeed JSON that change the gradient's scale, or split the model in ways that a study does not
    support."""
    if (operation := top.text("gradient_allreduce_op")) not in (None, "mean", "avg", "average"):
        raise ValueError(
            f"{top.name('gradient_allreduce_op')} ({operation!r}), but the workload's loss is averaged over the global "
            "batch; drop it"
        )
    for section, key in (("tensor_parallel", "autotp_size"), ("expert_parallel", "autoep_size")):
        part = top.section(section)
        size = part.integer(key)
        if size is not None and size > 1:
            raise ValueError(f"{part.name(key)} ({size}) is not offered; use 1 or drop the section")


def _check_names(top: Section) -> None:
    """Reject misspelt sections of a DeepSpeed JSON: DeepSpeed ignores them, so that the baseline would be a different
    training."""
    for key in top.values():
        close = difflib.get_close_matches(key, _SECTIONS, 1, _CLOSE)
        if close and key not in _SECTIONS and key not in _SILENT_KEYS:
            raise ValueError(f"{top.name(key)} is no key of a DeepSpeed JSON; did you mean {close[0]}?")


def check_recognised(top: Section) -> None:
    """Reject a baseline file that has no known key: if all its keys were ignored, the baseline would silently be the
    library's defaults.
    """
    keys = [key for key in top.values() if key != "micro_batch"]
    readable = {*_SILENT_KEYS, *_FURTHER_SECTIONS}
    if keys and not any(key in readable or difflib.get_close_matches(key, _SECTIONS, 1, _CLOSE) for key in keys):
        raise ValueError(
            f"{top.name(keys[0])} is no key of a baseline; give a configuration such as "
            '{"strategy": {"kind": "ddp"}}, or a DeepSpeed JSON, an Accelerate file or TrainingArguments as they are'
        )


def _check_outer(top: Section, outer: int, workload: Workload, world: int) -> None:
    """Compare the batch of a DeepSpeed JSON with the micro batch of the file that names it. The Trainer fills in what
    the JSON leaves open, and rejects other numbers (transformers 5.23)."""
    key, steps = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    micro, accumulation = top.integer(key), top.integer(steps)
    if micro not in (None, outer):
        raise ValueError(
            f"{top.name(key)} ({micro}), but the file that names this JSON has micro batch {outer}, stated or by default; make "
            "them equal"
        )
    if accumulation is not None:
        precisions.check_product((key, outer), (steps, accumulation), world, workload.global_batch)


def _micro_batch(top: Section, workload: Workload, cluster: Cluster, notes: list[str], outer: int | None) -> int:
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    precisions.check_positive(top, *names)
    total, micro, accumulation = (top.integer(name) for name in ("train_batch_size", *names))
    world, expected = cluster.world_size, workload.global_batch
    if total is not None and total != expected:
        raise ValueError(
            f"{top.name('train_batch_size')} ({total}), but the workload's global_batch is {expected}; make them equal"
        )
    if outer is not None:
        _check_outer(top, outer, workload, world)
        return outer
    if micro is None and accumulation is None and total is None:
        notes.append("baseline gives no batch size; measured at micro batch 1")
        return 1
    if micro is None:
        return precisions.micro_batch_of_accumulation(top, "gradient_accumulation_steps", workload, world)
    if accumulation is not None:
        precisions.check_product((names[0], micro), (names[1], accumulation), world, expected)
    return micro
