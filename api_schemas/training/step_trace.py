"""Step trace: what one training step of the user's own code needs, counted on tensors that have a size but no values.

A worker traces the step at two micro batch sizes, so that amounts that every sample adds and fixed amounts are told
apart.
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from shardtune.api_schemas.base import Dtype, Schema
from shardtune.api_schemas.names import PrintableText
from shardtune.api_schemas.protocol import Since

MOST_BYTES = 1e18
"""Maximum of an amount of bytes in the trace of a step: memory, or traffic between memory and processor."""
MOST_WORK = 1e24
"""Maximum number of FLOPs in a trace."""
_MOST_TENSORS = 4096

Amount = Annotated[float, Field(ge=0, le=MOST_BYTES)]
Sizes = Annotated[tuple[NonNegativeInt, ...], Field(max_length=_MOST_TENSORS)]

TraceFailureCode = Literal["script", "data_dependent", "custom_operator", "error", "time", "memory", "crashed"]


class Scaled(Schema):
    """Amount (bytes or FLOPs) that grows linearly with the number of samples in a micro batch."""

    fixed: Amount = 0.0
    """Part of the amount that does not depend on the number of samples in the micro batch."""
    per_sample: Amount = 0.0
    """Part of the amount that each sample of a micro batch adds."""

    def at(self, samples: float) -> float:
        """Return the amount for a micro batch with this number of samples."""
        return self.fixed + self.per_sample * samples


class StepWork(Schema):
    """Work of one part of a training step: its FLOPs and the bytes that it reads and writes."""

    matmul_flops: Annotated[float, Field(ge=0, le=MOST_WORK)] = 0.0
    """FLOPs of matrix products and convolutions per sample. A multiply-add counts as two."""
    attention_flops: Annotated[float, Field(ge=0, le=MOST_WORK)] = 0.0
    """FLOPs of fused attention per sample. Attention is counted in full (not halved for causality)."""
    traffic: Scaled = Scaled()
    """Bytes that are read and written by all operators other than matrix products, convolutions and fused attention."""
    kernels: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """Number of operators that run."""

    @property
    def flops(self) -> float:
        """FLOPs for each sample, including attention."""
        return self.matmul_flops + self.attention_flops


class StepTrace(Schema):
    """Memory (without the weights) and work of one forward and backward pass of the user's own code. They were traced
    on a CPU, with its kernels."""

    sequence_length: int = Field(ge=1)
    """Sequence length of the traced workload. The figures do not apply to other lengths."""
    compute_dtype: Dtype
    """Dtype of the traced computation."""
    autocast: bool = False
    """Whether the traced step ran under `torch.autocast`."""
    samples: tuple[int, ...] = Field(min_length=1, max_length=2)
    """Numbers of samples in the traced micro batches. If there is only one, amounts that do not depend on the number of
    samples cannot be determined, and are taken as 0."""
    peak: Scaled
    """Bytes at the peak of the first forward and backward pass, without the weights and with the gradients that exist
    at that moment."""
    outside: Scaled
    """Bytes of the batch, and of activations outside of the repeated blocks, that exist while the blocks run."""
    block: Scaled
    """Bytes of activations that one repeated block keeps for its backward: the mean over the blocks."""
    boundary: Scaled
    """Bytes of the input of one block. A checkpointed block keeps nothing else."""
    selective: Scaled
    """Bytes of the results of matrix products and attention in one block. Selective checkpointing keeps them in
    addition to the block's input."""
    working: Scaled
    """Bytes that the backward of one block needs while it runs, in addition to those that the blocks keep from
    forward."""
    loss: Scaled
    """Bytes at the peak between the end of the last block's forward and the begin of its backward (output head and
    loss), in addition to those that the blocks keep."""
    tail: Scaled
    """Bytes at the peak of that part of backward which follows the repeated blocks, without gradients of weights."""
    blocks_forward: StepWork
    """Work of all repeated blocks in forward."""
    outside_forward: StepWork
    """Work of the forward pass outside of the repeated blocks, including the loss."""
    backward: StepWork
    """Work of the whole backward."""
    block_tensors: Sizes = ()
    """Number of elements of each parameter in one repeated block of the model."""
    outside_tensors: Sizes = ()
    """Number of elements of each parameter outside of the repeated blocks."""
    trained_outside: NonNegativeInt = 0
    """Number of trained parameter elements outside of the repeated blocks."""
    unused_parameters: Annotated[NonNegativeInt, Since(2, may_be_dropped=True)] = 0
    """Number of trained parameters that get no gradient in a step, such as those of a pooler whose output the loss does
    not use."""
    tied: bool = False
    """Whether several modules share a parameter (tied weights), such as the token embedding and the output head."""

    @property
    def forward(self) -> float:
        """FLOPs of one sample's forward pass."""
        return self.blocks_forward.flops + self.outside_forward.flops


class TraceFailure(Schema):
    """Reason why no training step of the user's own code could be traced, so that nothing is predicted for the code."""

    code: TraceFailureCode
    """Kind of the reason why no step was traced. `script`: a training script has no step of its own; `data_dependent`:
    the step depends on values of activations; `custom_operator`: an operator runs only on real values; `error`: the
    step raised an error; `time`, `memory`: the trace reached a limit; `crashed`: the process ended."""
    message: PrintableText = Field(max_length=600)
    """Explanation for people."""

    @property
    def note(self) -> str:
        """Sentence for a study's notes: why its memory and speed are not predicted."""
        return f"nothing is predicted for your own code ({self.code}): {self.message}; trials show which configurations fit"
