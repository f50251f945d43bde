"""Peak memory of the fullest stage: model states, activations of the micro batches in flight, logits."""

from benchmarks.parallel.layout import Layout, Training, blocks_of_stages, parameters_of_stages

_HALF = 2.0
"""Bytes of a bfloat16."""
_LOGITS = 14.0
"""Bytes of a logit and of what the loss makes of it: bfloat16, an fp32 copy, log-softmax and its gradient."""
_OUTSIDE = 1.5e9
"""Context and communication library."""
_SCORES = {"flash": 0.0, "fused": 4.0, "torch": 5.0}
"""Bytes kept of each score of attention."""


def peak_bytes(training: Training, layout: Layout) -> float:
    """Peak memory of one GPU under 1F1B: a stage holds a micro batch for each stage from it to the last."""
    blocks, parameters = blocks_of_stages(training, layout.pp), parameters_of_stages(training, layout)
    program, tokens = training.program, layout.micro_batch * training.sequence
    per_parameter = program.weights + program.optimizer / (layout.dp if layout.zero else 1)
    all_blocks = block_bytes(training, layout)
    kept = tokens * _HALF * training.shape.hidden / _spread(layout) if layout.checkpointing else all_blocks
    logits = tokens * training.shape.vocab / (layout.tp if program.splits_logits else 1) * _LOGITS
    sizes = []
    for stage in range(layout.pp):
        flying = min(layout.pp - stage, layout.micro_batches(training))
        again = all_blocks if layout.checkpointing else 0.0
        activations = flying * blocks[stage] * kept + again + (logits if stage == layout.pp - 1 else 0.0)
        sizes.append(parameters[stage] * per_parameter + activations)
    return max(sizes) + _OUTSIDE


def block_bytes(training: Training, layout: Layout) -> float:
    """Bytes that backward needs of one block and micro batch (Korthikanti et al., arXiv:2205.05198, for a gated MLP)."""
    shape, tokens = training.shape, layout.micro_batch * training.sequence
    # Two norms: their inputs and, for the products behind them, their outputs; norms of several kernels keep two fp32 copies.
    norms = 2 * shape.hidden * (2 * _HALF + (0.0 if layout.fused_norms else 8.0))
    attention = _HALF * (2 * shape.query + 2 * shape.kv)
    mlp = _HALF * 4 * shape.ffn
    scores = _SCORES[layout.attention] * shape.heads * training.sequence
    return tokens * (norms / _spread(layout) + (attention + mlp + scores) / layout.tp)


def _spread(layout: Layout) -> int:
    """Ranks over which norms and the residual stream are split."""
    return layout.tp if layout.sequence_parallel else 1
