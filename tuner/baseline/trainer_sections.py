"""Nested fields of TrainingArguments that change how a step runs (transformers 5.23): checkpointing, and Accelerate's own
section."""

from shardtune.tuner.baseline import precision as precisions
from shardtune.tuner.baseline.section import Section

_CHECKPOINT_OPTIONS = frozenset(["use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop"])
"""Options of `torch.utils.checkpoint`, none of which changes what is trained."""


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
