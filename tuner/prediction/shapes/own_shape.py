"""Own shape: sizes, memory and work of the user's own code, from a worker's trace of one training step.

Nothing is computed by formula. The trace is one of one workload; another sequence length or dtype needs another trace.
"""

import math
from dataclasses import dataclass

from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.training.step_trace import StepTrace
from shardtune.api_schemas.training.workload import Precision
from shardtune.tuner.prediction.shapes.counted_shape import TracedShape

_SMALLEST_MATRIX = 4096
"""Minimum number of elements of a parameter that counts as a matrix; smaller parameters are biases and norms."""


@dataclass(frozen=True, kw_only=True)
class OwnShape(TracedShape):
    """Shape of a model that the user's own code builds. A model without repeated blocks is one block."""

    trace: StepTrace

    @property
    def step_trace(self) -> StepTrace | None:
        """Trace of one training step."""
        return self.trace

    @property
    def block_parameters(self) -> int:
        """Number of elements of one block, on average over the blocks."""
        blocks = self.counted.blocks
        return sum(block.parameters for block in blocks) // len(blocks) if blocks else self.counted.parameters

    @property
    def matrix_parameters(self) -> int:
        """Number of elements of all matrices in blocks."""
        counts = sum(block.matrix_parameters or 0 for block in self.counted.blocks)
        return counts if self.counted.blocks else self.counted.parameters

    @property
    def block_matrices(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of the matrices of one block, assumed to be square, since the trace records only their
        numbers of elements."""
        sides = [math.isqrt(size) for size in self.trace.block_tensors if size >= _SMALLEST_MATRIX]
        return tuple((side, side) for side in sides)

    @property
    def outside_parameters(self) -> int:
        """Number of elements of the parameters outside the blocks."""
        return self.counted.outside_blocks if self.counted.blocks else 0

    @property
    def embedding_parameters(self) -> int:
        """Number of elements of the largest parameter outside the blocks: a token table, where there is one."""
        return max(self.trace.outside_tensors, default=0)

    @property
    def largest_parameter(self) -> int:
        """Number of elements of the largest single parameter."""
        blocks = (block.largest_parameter for block in self.counted.blocks)
        return max(self.embedding_parameters, *self.trace.block_tensors, *blocks, 1)

    @property
    def trained_parameters(self) -> int:
        """Number of elements that are trained."""
        return self.counted.trainable

    @property
    def trained_block_parameters(self) -> int:
        """Number of elements that are trained in one block, on average over the blocks."""
        return max(0, self.counted.trainable - self.trace.trained_outside) // self.layers

    @property
    def trained_outside(self) -> float:
        """Fraction of the parameters in no block that are trained."""
        return self.trace.trained_outside / max(self.outside_parameters, 1)

    @property
    def block_matmul_flops_per_token(self) -> float:
        """Forward FLOPs per token of one block's matrix products."""
        return self.trace.blocks_forward.matmul_flops / self.layers / self.trace.sequence_length

    def attention_flops_per_token(self, sequence: float) -> float:
        """Forward FLOPs per token of one block's fused attention, at the traced sequence length."""
        return self.trace.blocks_forward.attention_flops / self.layers / self.trace.sequence_length

    def model_flops_per_token(self, sequence: float) -> float:
        """Training FLOPs of one token, forward and backward, as they were traced."""
        return (self.trace.forward + self.trace.backward.flops) / self.trace.sequence_length


def of_summary(model: ModelSpec, model_summary: ModelSummary) -> OwnShape | None:
    """Shape of a model that the user's own code builds; None where no training step of it was traced."""
    trace = model_summary.step_trace
    if trace is None:
        return None
    return OwnShape(
        name=model.name,
        layers=max(1, len(model_summary.blocks)),
        # Formulas of transformers' blocks are not used; these sizes only have to be positive.
        hidden=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        ffn=1,
        vocab=1,
        norm="layer",
        tied=trace.tied,
        counted=model_summary,
        trace=trace,
    )


def check_workload(trace: StepTrace, sequence: int, precision: Precision) -> None:
    """Check that a prediction is for the workload that was traced.

    Raises:
        ValueError: the workload has another sequence length or dtype than the traced step.
    """
    if sequence != trace.sequence_length:
        raise ValueError(
            f"sequence_length ({sequence}) must be {trace.sequence_length}, with which your own code was traced; "
            "trace it again with the other length"
        )
    if (precision.compute_dtype, precision.autocast) != (trace.compute_dtype, trace.autocast):
        traced = f"{trace.compute_dtype}{' by autocast' if trace.autocast else ''}"
        raise ValueError(
            f"precision ({precision.name}) must compute in {traced}, with which your own code was traced; "
            "trace it again with the other precision"
        )
