"""Fields of a training configuration that say how the loss is computed, with their knobs."""

from typing import Annotated

from pydantic import Field

from shardtune.api_schemas.knobs import Knob, Lost, When, Written
from shardtune.api_schemas.protocol import Since
from shardtune.api_schemas.strategies.losses import DEFAULT_CHUNK, Loss
from shardtune.api_schemas.strategies.trial_fields import TrialFields

_ALL_LOGITS = Lost("computes the logits of a whole micro batch")
_IN_YOUR_MODULE = Written("a note: compute it in your module")


class LossFields(TrialFields):
    """Settings of a training configuration: those that every strategy has, and those that say how the loss is computed."""

    loss: Annotated[
        Loss,
        Knob(
            help="Whether the loss has the logits of a whole micro batch at once, or of a chunk of tokens, whose logits "
            "backward computes again.",
            name="loss",
            value_names={"full": "of all logits", "chunked": "in chunks"},
            exports={
                "script": Written("`ChunkedHead`"),
                "accelerate": Written("a line of your script"),
                "training_arguments": _ALL_LOGITS,
                "torchtitan": Written("`ChunkedLossWrapper`; lost with pipeline stages"),
                "lightning": _IN_YOUR_MODULE,
            },
            values_text="`full`, `chunked`",
            when_text="a micro batch has more than 1,024 tokens, and its logits (12 bytes each) take 256 MiB and 5 % of a "
            "rank's memory, or the knob is limited; not with your own code, DeepCompile, or a model that does more with its "
            "logits than a plain loss",
            upstream="TRL's loss (1.16), which is always in chunks; [the loss in chunks](../explanation/loss.md)",
        ),
    ] = "full"
    """Way to compute the loss: from the logits of a whole micro batch (`full`), or in chunks of tokens, whose logits
    backward computes again (`chunked`). Chunks need less memory and cost one more product with the output head."""
    loss_chunk: Annotated[
        int,
        Knob(
            help="Tokens in a chunk of the loss: fewer need less memory.",
            name="loss, tokens in a chunk",
            when=When(is_named=True, others={"loss": ("chunked",)}),
            accepts_own_values=True,
            lightest="min",
            exports={
                "script": Written("`LOSS_CHUNK`"),
                "accelerate": Written("a line of your script"),
                "training_arguments": _ALL_LOGITS,
                "torchtitan": Written("the number of chunks of `ChunkedLossWrapper`"),
                "lightning": _IN_YOUR_MODULE,
            },
            values_text="1,024; your own numbers of tokens, or 64, 256, 1,024, 4,096",
            upstream="as the number of chunks of torchtune's chunked loss, in tokens",
        ),
    ] = Field(default=DEFAULT_CHUNK, ge=16, le=1 << 20)
    """Number of tokens in a chunk, if the loss is computed in chunks. Smaller chunks need less memory, and accumulate
    the output head's gradient in more steps."""
    loss_compile: Annotated[
        bool,
        Knob(
            help="The cross entropy of each chunk of tokens and its gradient are compiled (`torch.compile`).",
            name="loss, compiled chunks",
            tries=(False, True),
            exports={
                "script": Written("`torch.compile` of the functions of one chunk"),
                "accelerate": Written("a line of your script"),
                "training_arguments": _ALL_LOGITS,
                "torchtitan": Written("`loss` among `compile.components`; lost with pipeline stages"),
                "lightning": _IN_YOUR_MODULE,
            },
            when_text="`loss` is `chunked`, on GPUs unless `space.allow_compile` is `false`; elsewhere where the knob is "
            "limited",
            upstream="`torch.compile` of the functions of one chunk; torchtitan compiles its loss by default; "
            "[compiled chunks](../explanation/loss.md#compiled-chunks)",
        ),
        Since(2),
    ] = False
    """Whether the cross entropy of each chunk and its gradient are compiled by `torch.compile`, if the loss is computed
    in chunks. The chunk's logits then have no float32 copy in memory, and fewer kernels read them. The first step takes
    seconds longer."""

    @property
    def has_chunked_loss(self) -> bool:
        """Whether the loss is computed in chunks of tokens."""
        return self.loss == "chunked"

    @property
    def chunk_tokens(self) -> int | None:
        """Number of tokens whose logits exist at once; None if those of a whole micro batch do."""
        return self.loss_chunk if self.has_chunked_loss else None
