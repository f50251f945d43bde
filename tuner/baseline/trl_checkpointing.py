"""Fill in TRL's default for activation checkpointing, which is not the Trainer's (TRL 1.16)."""

from shardtune.tuner.baseline import fsdp
from shardtune.tuner.baseline.section import Section

_MARKS = frozenset(["packing", "packing_strategy", "eval_packing", "completion_only_loss", "assistant_only_loss"])
_MARKS |= {"activation_offloading", "use_peft"}
"""Keys by which a file of TRL's SFTConfig or ModelConfig is told from one of TrainingArguments: any one is enough."""
_NAMES = frozenset(["activation_checkpointing", "gradient_checkpointing"])


def with_default(top: Section, notes: list[str]) -> Section:
    """Copy of a TRL file in which blocks are checkpointed, if the file says nothing of that: TRL checkpoints unless it is
    told not to. A file without a key of TRL's own is returned as it is, because it may be for transformers' Trainer."""
    values = top.values()
    section = values.get("fsdp_config")
    by_fsdp = isinstance(section, dict) and "activation_checkpointing" in fsdp.without_prefix(section)
    if by_fsdp or _NAMES & values.keys() or not _MARKS & values.keys():
        return top
    name = "gradient_checkpointing"
    notes.append(f"{top.name(name)} is absent, which means true in TRL; measured with full checkpointing")
    return top.with_values(values | {name: True})
