"""Summary of a model that the user's own code builds, with what a trace of one training step counted."""

from typing import Any

from shardtune.api_schemas.training.models import BlockSummary, ModelSpec, ModelSummary
from shardtune.api_schemas.training.step_trace import StepTrace
from shardtune.api_schemas.training.workload import Workload
from shardtune.workers.rank.own_code import trace_process

_CAUSAL = 0.5
"""Smallest fraction of the FLOPs of fused attention that is left if a causal mask is taken into account."""


def with_trace(model_summary: ModelSummary, spec: ModelSpec, workload: Workload) -> ModelSummary:
    """Copy of a model summary with a traced step added, or with the reason why none could be traced."""
    traced = trace_process.trace(spec, workload)
    if not isinstance(traced, StepTrace):
        return model_summary.model_copy(update={"trace_failure": traced, "note": traced.note})
    tokens = traced.sequence_length
    skipped = _CAUSAL * (traced.blocks_forward.attention_flops + traced.outside_forward.attention_flops)
    facts: dict[str, Any] = {
        "step_trace": traced,
        "blocks": _with_flops(model_summary.blocks, traced),
        "forward_flops_per_token": traced.forward / tokens,
        "training_flops_per_token": (traced.forward + traced.backward.flops) / tokens,
        "least_flops_per_token": (traced.forward - skipped) / tokens,
    }
    return model_summary.model_copy(update=facts)


def _with_flops(blocks: tuple[BlockSummary, ...], traced: StepTrace) -> tuple[BlockSummary, ...]:
    """Copies of the blocks' summaries, in each of which the FLOPs are the mean of all blocks."""
    if not blocks:
        return blocks
    flops = traced.blocks_forward.flops / len(blocks) / traced.sequence_length
    return tuple(block.model_copy(update={"forward_flops_per_token": flops}) for block in blocks)
