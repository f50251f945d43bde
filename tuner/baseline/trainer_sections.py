"""Fields of TrainingArguments that change how a step runs (transformers 5.23): nested ones for checkpointing, Accelerate's
own section, Liger's kernels, and TRL's default for checkpointing, which is not the Trainer's (TRL 1.16)."""

from collections.abc import Mapping

from pydantic import JsonValue

from shardtune.tuner.baseline import fsdp
from shardtune.tuner.baseline import precision as precisions
from shardtune.tuner.baseline.section import Section

_CHECKPOINT_OPTIONS = frozenset(["use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop"])
"""Options of `torch.utils.checkpoint`, none of which changes what is trained."""
_TRL_KEYS = frozenset(["packing", "packing_strategy", "eval_packing", "completion_only_loss", "assistant_only_loss"])
_TRL_KEYS |= {"activation_offloading", "use_peft", "loss_type", "trl_version"}
_TRL_KEYS |= {"dataset_text_field", "chat_template_path", "model_init_kwargs", "padding_free"}
"""Keys by which a file of TRL's SFTConfig or ModelConfig is told from one of TrainingArguments: any one is enough.
`trl_version` is Shardtune's own: it stands beside the file."""
_CHECKPOINTING = frozenset(["activation_checkpointing", "gradient_checkpointing"])
FUSED_LOSS = "fused_linear_cross_entropy"
"""Key of `liger_kernel_config` that switches Liger's fused loss on or off."""
WHOLE_LOGITS = (
    "measured with the logits of a whole micro batch, which take more memory: a baseline in Shardtune's words may have loss "
    "'chunked'"
)
"""End of a note on a file whose program never has all logits in memory, by kernels that no trial has."""


def reduces_each_batch(top: Section, notes: list[str]) -> bool:
    """Whether Accelerate reduces gradients after each micro batch, not after a step's last one."""
    name = "accelerator_config"
    if not isinstance(top.values().get(name), dict):
        return False
    section = top.section(name)
    accumulation = section.section("gradient_accumulation_kwargs")
    reduces = bool(accumulation.flag("sync_each_batch"))
    notes += [f"{key} is not applied" for key in (*section.unread(), *accumulation.unread(frozenset(["num_steps"])))]
    return reduces


def checkpointing(top: Section, notes: list[str]) -> dict[str, object]:
    """Fields of the configuration that say which blocks the Trainer checkpoints, and whether it keeps their inputs in
    host memory."""
    offloads, every = False, 1
    for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"):
        if not isinstance(top.values().get(name), dict):
            continue
        section = top.section(name)
        offloads |= bool(section.flag("offload"))
        precisions.check_positive(section, "every_n_layers")
        every = max(every, section.integer("every_n_layers") or 1)
        notes += [f"{key} is not applied" for key in section.unread(_CHECKPOINT_OPTIONS)]
    if every > 1:
        notes.append(f"the Trainer checkpoints blocks 1, {every + 1}, …; measured with blocks {every}, {2 * every}, …")
    return {"activation_offload": offloads, "checkpoint_every": every}


def is_of_trl(values: Mapping[str, JsonValue]) -> bool:
    """Whether the content of a file with fields of TrainingArguments is TRL's, by a key of TRL's own."""
    return bool(_TRL_KEYS & values.keys())


def with_trl_default(top: Section, notes: list[str]) -> Section:
    """Copy of a TRL file in which blocks are checkpointed, if the file says nothing of that: TRL checkpoints unless it is
    told not to. A file without a key of TRL's own is returned as it is, because it may be for transformers' Trainer."""
    values = top.values()
    section = values.get("fsdp_config")
    by_fsdp = isinstance(section, dict) and "activation_checkpointing" in fsdp.without_prefix(section)
    if by_fsdp or _CHECKPOINTING & values.keys() or not is_of_trl(values):
        return top
    name = "gradient_checkpointing"
    notes.append(f"{top.name(name)} is absent, which means true in TRL; measured with full checkpointing")
    return top.with_values(values | {name: True})


def note_liger(top: Section, notes: list[str]) -> None:
    """Note that trials have none of Liger's kernels, if a file of the Trainer or of a fine-tuning tool switches them on.
    Liger's fused loss, which the file may switch off, never has all logits in memory."""
    config = top.values().get("liger_kernel_config")
    is_fused = not isinstance(config, dict) or top.section("liger_kernel_config").flag(FUSED_LOSS) is not False
    rest = f"; {WHOLE_LOGITS}" if is_fused else ""
    for key in ("use_liger_kernel", "enable_liger_kernel"):
        if top.flag(key):
            notes.append(f"{top.name(key)} (true) is not applied: trials have none of its kernels{rest}")
