"""Facts about the program in a published row's notes and source: `tuner.prediction.footprint.Implementation`."""

import re

from shardtune.tuner.prediction.candidates import Implementation

Row = dict[str, str]


def implementation(row: Row) -> Implementation:
    """The program of a row."""
    notes, name = row["notes"], row["model_name"]
    # FlashAttention needs Ampere or newer. A note "eager attention" (ds-sdma) is not taken at its word: that script sets
    # an attribute that transformers ignores, and SDPA ran.
    eager = row["gpu"].startswith("V100")
    megatron = bool(re.search("megatron", name, re.IGNORECASE))
    titan_pr165 = "torchtrain" in notes
    nanotron = "nanotron" in row["source"]
    selective = "second_matmuls"
    if re.search(r"every-?(2nd|second)", notes):
        selective = "alternate_blocks"
    elif "megatron" in row["backend"]:
        selective = "attention"
    elif "fms" in row["source"]:
        selective = "alternate_blocks"
    trainable = 0.01 if re.search(r"\bLoRA\b", notes) else 1.0
    return Implementation(
        attention="eager" if eager else "flash",
        selective=selective,  # type: ignore[arg-type]
        autocast=_autocast(row),
        # The model of that repository returned fp32 logits, which stay alive beside the loss's own three copies.
        # Megatron's vocab-parallel cross entropy works in place: the fp32 copy, and the copy less its maximum.
        # transformers before 4.46 upcast the logits and copied them shifted; atorch's example loop also keeps the last
        # pass's: logits, shifted copy, log-softmax, last logits, all fp32 and no bf16 any more.
        fp32_logit_copies=4.0 if titan_pr165 else 2.0 if megatron else 3.5 if "atorch" in row["source"] else 3.0,
        # That loop (examples/llama2/fsdp_llama2.py) wraps checkpointing itself and leaves `use_cache` on.
        kept_caches=2 if "atorch" in row["source"] else 0,
        fused_optimizer="torchtune" in row["source"] or megatron,
        loss_chunks=8 if _ladder_after(notes, "chunked cross-entropy") else 1,
        optimizer_in_backward=_ladder_after(notes, "optimizer in backward"),
        offload_activations="activations" in row["offload"],
        trainable=trainable,
        # The fine-tuning runs of BERT models are classifiers (GLUE), without a head over the vocabulary.
        language_head=not re.search(r"bert", name, re.IGNORECASE),
        # MPT's attention was a Triton kernel of the first FlashAttention, about half of FlashAttention-2's rate.
        attention_rate=0.5 if name.startswith("MPT") else 1.0,
        main_gradients=nanotron,
        # Its step ends with a barrier and a synchronisation (`train_step_logs`), after loops over the parameters: nothing
        # of that hides. The figure was chosen by looking at 19 rows of it (docs/measurements/predictor.md).
        step_host_s=0.025 if nanotron else 0.0,
        dropout=0.1 if re.search(r"gpt2|bert|megatron", name, re.IGNORECASE) and eager else 0.0,
    )


def _autocast(row: Row) -> bool:
    """Composer's `mp_mode=DEFAULT` gathers fp32 parameters and casts inside each operation."""
    if "pure bf16" in row["notes"] or row["precision"] == "fp32":
        return False
    if "mp_mode=DEFAULT" in row["notes"]:
        return True
    return row["backend"] in ("ddp", "none") and "nanotron" not in row["source"] and "fwd+bwd" not in row["notes"]


_LADDER = (
    "baseline",
    "packed dataset",
    "compile",
    "chunked cross-entropy",
    "activation checkpointing",
    "optimizer in backward",
)


def _ladder_after(notes: str, technique: str) -> bool:
    """torchtune's table is cumulative: each row adds a technique to all those before it."""
    match = re.search(r"cumulative ladder step: \+? ?([^;]+)", notes)
    if match is None:
        return technique in notes
    step = match[1].strip()
    if step in _LADDER:
        return _LADDER.index(step) >= _LADDER.index(technique)
    return step not in ("baseline (no packing)",)
