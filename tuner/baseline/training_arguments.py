"""Reading of transformers' TrainingArguments, as a JSON or YAML file of its fields, as a baseline (transformers
5.23)."""

import difflib
from collections.abc import Mapping

from pydantic import JsonValue

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.optimizers import AdamSettings, AdamW, AdamW8bit, OptimizerSchema
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline import (
    accelerate,
    deepspeed,
    fsdp,
    trainer_sections,
    trl_adapter,
    trl_loss,
    trl_packing,
)
from shardtune.tuner.baseline import precision as precisions
from shardtune.tuner.baseline.auto import TRAINERS_BATCH
from shardtune.tuner.baseline.section import Section

KEYS = frozenset(["output_dir", "per_device_train_batch_size", "deepspeed", "fsdp", "fsdp_config", "ddp_bucket_cap_mb"])
"""Keys by which a file of TrainingArguments is told from a DeepSpeed JSON: any one is enough."""
KEYS |= {"gradient_checkpointing", "learning_rate", "num_train_epochs", "max_steps", "adam_beta1", "torch_compile"}
"""Further keys of which any one distinguishes a file of TrainingArguments from a DeepSpeed JSON."""
_ADAM = {"learning_rate": "lr", "adam_beta1": "beta1", "adam_beta2": "beta2", "adam_epsilon": "eps"}
_ADAM |= {"weight_decay": "weight_decay"}
_SILENT_PREFIXES = (
    "log",
    "eval",
    "save",
    "hub",
    "push_to_hub",
    "dataloader",
    "report_to",
    "include_",
    "metric",
    "trackio",
)
_SILENT = frozenset(
    [
        "output_dir",
        "num_train_epochs",
        "max_steps",
        "run_name",
        "project",
        "seed",
        "data_seed",
        "disable_tqdm",
        "debug",
        "per_device_eval_batch_size",
        "prediction_loss_only",
        "load_best_model_at_end",
        "greater_is_better",
        "do_train",
        "do_eval",
        "do_predict",
        "resume_from_checkpoint",
        "local_rank",
        "remove_unused_columns",
        "label_names",
        "ddp_timeout",
        "ddp_backend",
        "skip_memory_metrics",
        "ignore_data_skip",
        "use_cpu",
        "batch_eval_metrics",
        "bf16_full_eval",
        "fp16_full_eval",
        "use_cache",
        "overwrite_output_dir",
        "ddp_broadcast_buffers",
    ]
)
_KNOWN_FIELDS = (
    *_ADAM,
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "max_grad_norm",
    "ddp_bucket_cap_mb",
    "ddp_static_graph",
    "ddp_find_unused_parameters",
    "fsdp_config",
    "deepspeed",
    "torch_compile",
    "label_smoothing_factor",
    "neftune_noise_alpha",
)
"""Known fields of TrainingArguments, compared with an unknown key to find a misspelling."""
_CLOSE = 0.85
_NEAR_BUT_TRUE = frozenset(["gradient_checkpointing_kwargs", "per_device_eval_batch_size"])
"""Fields of TrainingArguments (transformers 5.23) that resemble a known field without being a misspelling."""
_ADAMW_NAMES = frozenset(["adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused"])
"""Values of the field `optim` that mean AdamW with moments in the weights' dtype (transformers 5.23); `adamw_torch_4bit`
and `adamw_torch_8bit` are torchao's, with packed moments."""
_NO_FSDP: tuple[JsonValue, ...] = (None, False, "", [])
_NUMERIC = {
    "label_smoothing_factor": "the workload's loss is plain cross entropy",
    "neftune_noise_alpha": "trials add no noise",
}


def read(
    top: Section, workload: Workload, cluster: Cluster, notes: list[str], model: ModelSpec | None = None
) -> TrialConfig:
    """Read a baseline configuration from a file of TrainingArguments, or of TRL's SFTConfig.

    `model`: its vocabulary decides in which chunks TRL's loss is measured.

    Raises:
        ValueError: a contradiction with the workload or the cluster.
    """
    _check_names(top)
    top, loss = trl_loss.read(trainer_sections.with_trl_default(top, notes), model, notes)
    trl_packing.check(top, workload, notes)
    trl_packing.note_length(top, workload, notes)
    trl_adapter.check(top, workload, notes)
    precision = workload.precision
    remedy = "bf16-mixed" if is_sharded(top) else precisions.ddp_name(workload.adapter)
    check = precisions.check_bf16 if top.get("deepspeed") is not None else precisions.check_mixed
    # Beside `torch_autocast` bf16 would cast the weights, so that such a file says false; DeepSpeed's JSON is read below.
    if not (
        precision.autocast and top.flag("bf16") is False and is_autocast_of_deepspeed(top.values().get("deepspeed"))
    ):
        check(top.name("bf16"), top.flag("bf16"), precision, notes, remedy)
    if not is_sharded(top):
        # Without DeepSpeed and FSDP the Trainer wraps the model in DDP.
        precisions.note_autocast("the Trainer", workload, notes)
    return read_fields(top, workload, cluster, notes).model_copy(update=loss)


def read_fields(
    top: Section, workload: Workload, cluster: Cluster, notes: list[str], owner: str = "the Trainer"
) -> TrialConfig:
    """Read a baseline configuration from fields of TrainingArguments whose names and `bf16` are known to be right.
    `owner`: name of the program that the file belongs to, for notes.

    Raises:
        ValueError: a contradiction with the workload or the cluster.
    """
    precisions.check_fp16(top.name("fp16"), top.flag("fp16"), workload.precision, notes)
    top.get("bf16")
    precisions.check_clipping(top, "max_grad_norm", workload, notes)
    precisions.check_adamw([(top, key, name) for key, name in _ADAM.items()], workload)
    _check_numbers(top, workload)
    if isinstance(workload.optimizer, AdamW8bit):
        notes.append(f"measured with 8-bit moments of embeddings, too: under DDP {owner} keeps float32 ones")
    micro_batch = _micro_batch(top, workload, cluster, notes)
    config = _strategy(top, workload, cluster, notes, micro_batch, owner)
    update: dict[str, object] = {"micro_batch": micro_batch}
    if top.flag("gradient_checkpointing") or top.flag("activation_checkpointing"):
        update |= {"activation_checkpointing": "full", **trainer_sections.checkpointing(top, notes)}
    if isinstance(config.strategy, DdpConfig | Fsdp2Config) and trainer_sections.reduces_each_batch(top, notes):
        update["strategy"] = config.strategy.model_copy(update={"grad_sync": "every"})
    if top.flag("torch_compile"):
        notes.append(f"{top.name('torch_compile')} is not applied: measured without torch.compile")
    trainer_sections.note_liger(top, notes)
    if top.word("lr_scheduler_type") is not None or any(key in top for key in ("warmup_steps", "warmup_ratio")):
        notes.append("baseline's learning rate schedule is not applied: trials train at a constant learning rate")
    # Fields of logging, evaluation and saving are recognised by prefix: there are dozens, and none changes a step.
    unread = [name for name in top.unread(_SILENT) if not name.split(".", 1)[1].startswith(_SILENT_PREFIXES)]
    notes += [f"{name} is not applied" for name in unread]
    return accelerate.with_sync(config.model_copy(update=update), workload, cluster, notes)


def is_training_arguments(values: Mapping[str, JsonValue]) -> bool:
    """Whether the content of a file is TrainingArguments; also true where the name of its batch size is misspelt."""
    return (
        bool(KEYS & values.keys())
        or isinstance(values.get("bf16"), bool)
        or any(intended_field(key) == "per_device_train_batch_size" for key in values)
    )


def intended_field(key: str) -> str | None:
    """Field of TrainingArguments that a key misspells, None where the key is no misspelling."""
    if key in _NEAR_BUT_TRUE or key in _KNOWN_FIELDS:
        return None
    return next(iter(difflib.get_close_matches(key, _KNOWN_FIELDS, 1, _CLOSE)), None)


def _check_names(top: Section) -> None:
    """Reject misspelt fields in a file of TrainingArguments."""
    for key in top.values():
        # A misspelt field would be ignored, and its default measured.
        if (field := intended_field(key)) is not None:
            raise ValueError(f"{top.name(key)} is no key of TrainingArguments; did you mean {field}?")


def autocasts(top: Section) -> bool:
    """Whether transformers' Trainer trains this file with bf16 under DDP, where it uses autocast and casts no weights."""
    return top.flag("bf16") is True and not is_sharded(top)


def is_autocast_of_deepspeed(document: JsonValue) -> bool:
    """Whether a DeepSpeed JSON computes under autocast by itself (`torch_autocast`)."""
    if not isinstance(document, dict):
        return False
    return bool(Section(document, "baseline.deepspeed").section("torch_autocast").flag("enabled"))


def is_sharded(top: Section) -> bool:
    """Whether the file's training runs under DeepSpeed or FSDP instead of DDP."""
    return top.get("deepspeed") is not None or top.get("fsdp") not in _NO_FSDP


def _check_numbers(top: Section, workload: Workload) -> None:
    """Check the fields of TrainingArguments that change what is trained (not just its speed) against the workload."""
    optimizer = top.word("optim")
    trained = workload.optimizer
    if optimizer is not None and not _names(optimizer, trained):
        remedy = (
            f"use {trained.trainer_name}" if isinstance(trained, AdamSettings) and trained.in_trainer else "drop it"
        )
        raise ValueError(f"{top.name('optim')} ({optimizer!r}), but the workload trains with {trained.title}; {remedy}")
    for key, reason in _NUMERIC.items():
        if top.number(key):
            raise ValueError(f"{top.name(key)} ({top.number(key)}) changes the training, but {reason}; drop it")


def _names(optimizer: str, trained: OptimizerSchema) -> bool:
    """Whether a value of the Trainer's field `optim` names the workload's optimizer."""
    if isinstance(trained, AdamW8bit):
        return optimizer in ("adamw_bnb_8bit", "adamw_8bit")
    return isinstance(trained, AdamW) and optimizer in _ADAMW_NAMES


def _micro_batch(top: Section, workload: Workload, cluster: Cluster, notes: list[str]) -> int:
    keys = ("per_device_train_batch_size", "gradient_accumulation_steps")
    precisions.check_positive(top, *keys)
    micro, accumulation = (top.integer(key) for key in keys)
    if micro is None:
        # The Trainer would run with its default, so that is the user's present speed.
        micro = TRAINERS_BATCH
        notes.append(f"{top.name(keys[0])} is absent; measured with transformers' default {micro}")
    defaults = [key for key in keys if top.integer(key) is None]
    names = [top.name(key).partition(".")[2] for key in keys]
    counts = (names[0], micro), (names[1], accumulation or 1)
    stated = [name for key, name in zip(keys, names, strict=True) if key in defaults]
    precisions.check_product(*counts, cluster.world_size, workload.global_batch, stated)
    return micro


def _strategy(
    top: Section, workload: Workload, cluster: Cluster, notes: list[str], micro_batch: int, owner: str
) -> TrialConfig:
    bucket, static = top.integer("ddp_bucket_cap_mb"), bool(top.flag("ddp_static_graph"))
    unused = top.flag("ddp_find_unused_parameters")
    if top.get("deepspeed") is not None:
        return deepspeed.read(top.section("deepspeed"), workload, cluster, notes, micro_batch)
    if (switch := top.get("fsdp")) not in _NO_FSDP:
        values = fsdp.without_prefix(top.section("fsdp_config").values())
        _read_legacy_options(switch, values, top.name("fsdp"))
        fsdp.note_precision(workload.precision, owner, notes)
        return fsdp.read(Section(values, top.name("fsdp_config")), 2, None, cluster, notes)
    # The Trainer reads fsdp_config only where `fsdp` switches it on.
    if "fsdp_config" in top:
        notes.append(f"{top.name('fsdp_config')} has no effect without fsdp")
    if unused:
        notes.append(
            f"{top.name('ddp_find_unused_parameters')} is not applied: a trial sets it where its traced step shows parameters without a gradient"
        )
    return TrialConfig(strategy=DdpConfig(static_graph=static, **({} if bucket is None else {"bucket_cap_mb": bucket})))


def _read_legacy_options(switch: JsonValue, values: dict[str, JsonValue], name: str) -> None:
    """Read the field `fsdp` in its old form, such as `full_shard auto_wrap offload`; newer transformers has a switch
    instead."""
    words = switch.split() if isinstance(switch, str) else switch if isinstance(switch, list) else []
    for word in (str(word) for word in words):
        if word.lower() in ("true", "auto_wrap"):
            continue
        if word == "offload":
            values.setdefault("cpu_offload", True)
        elif word.upper() in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"):
            values.setdefault("reshard_after_forward", word)
        else:
            raise ValueError(f"{name} ({word!r}) is no option of fsdp; use true, and fsdp_config for the rest")
