"""Fields of TrainingArguments that change how a step runs (transformers 5.23): nested ones for checkpointing, Accelerate's
own section, Liger's kernels, and TRL's loss and its default for checkpointing, which are not the Trainer's (TRL 1.16)."""

from shardtune.tuner.baseline import fsdp
from shardtune.tuner.baseline import precision as precisions
from shardtune.tuner.baseline.section import Section

_CHECKPOINT_OPTIONS = frozenset(["use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop"])
"""Options of `torch.utils.checkpoint`, none of which changes what is trained."""
_TRL_KEYS = frozenset(["packing", "packing_strategy", "eval_packing", "completion_only_loss", "assistant_only_loss"])
_TRL_KEYS |= {"activation_offloading", "use_peft"}
"""Keys by which a file of TRL's SFTConfig or ModelConfig is told from one of TrainingArguments: any one is enough."""
_CHECKPOINTING = frozenset(["activation_checkpointing", "gradient_checkpointing"])
_PLAIN_LOSSES = frozenset(["nll", "chunked_nll"])
"""Values of TRL's `loss_type` that mean the cross entropy of the next token; the second is the first's older name."""
_WHOLE_LOGITS = (
    "measured with the logits of a whole micro batch, which take more memory: a baseline in Shardtune's words may have loss "
    "'chunked'"
)


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


def with_trl_default(top: Section, notes: list[str]) -> Section:
    """Copy of a TRL file in which blocks are checkpointed, if the file says nothing of that: TRL checkpoints unless it is
    told not to. A file without a key of TRL's own is returned as it is, because it may be for transformers' Trainer."""
    values = top.values()
    section = values.get("fsdp_config")
    by_fsdp = isinstance(section, dict) and "activation_checkpointing" in fsdp.without_prefix(section)
    if by_fsdp or _CHECKPOINTING & values.keys() or not _TRL_KEYS & values.keys():
        return top
    name = "gradient_checkpointing"
    notes.append(f"{top.name(name)} is absent, which means true in TRL; measured with full checkpointing")
    return top.with_values(values | {name: True})


def check_loss(top: Section, notes: list[str]) -> None:
    """Reject a TRL file whose loss is no cross entropy of the next token, and note that TRL computes this loss without all
    logits in memory, as a trial with the whole loss does not.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    name, stated = top.name("loss_type"), top.word("loss_type")
    if stated is not None and stated not in _PLAIN_LOSSES:
        raise ValueError(f"{name} ({stated!r:.60}) changes what is trained, which no trial does; use nll, or drop it")
    if stated is not None or _TRL_KEYS & top.values().keys():
        shown = "is absent, which means nll in TRL" if stated is None else f"({stated})"
        notes.append(f"{name} {shown}, a loss in chunks; {_WHOLE_LOGITS}")


def note_liger(top: Section, notes: list[str]) -> None:
    """Note that trials have none of Liger's kernels, if a file of the Trainer or of LLaMA-Factory switches them on."""
    for key in ("use_liger_kernel", "enable_liger_kernel"):
        if top.flag(key):
            notes.append(f"{top.name(key)} (true) is not applied: trials have none of its kernels; {_WHOLE_LOGITS}")
