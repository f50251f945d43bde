"""Computation of the loss: its kinds, and the models and configurations that can have it in chunks."""

from typing import Literal

from shardtune.api_schemas.training.models import ModelSpec, ModelSummary

Loss = Literal["full", "chunked"]
"""Way to compute the loss. `full` computes the logits of a whole micro batch at once. `chunked` computes them for
`loss_chunk` tokens at a time, and again in backward."""

DEFAULT_CHUNK = 1024
"""Number of tokens in a chunk, if the loss is computed in chunks of tokens."""


NEEDS = "it needs loss ('chunked')"
"""End of an error message: the value of another knob that a compiled loss requires."""
NEEDED = "loss_compile (true) needs it"
"""End of an error message: the reason why another knob has only one value beside a compiled loss."""


def loss_words(chunk: int, *, is_compiled: bool = False) -> str:
    """Describe a loss in chunks for people, such as `loss in chunks of 1,024 tokens`."""
    return f"loss in {'compiled ' if is_compiled else ''}chunks of {chunk:,} tokens"


def check_compile(compiles: bool, loss: Loss) -> None:
    """Reject a compiled loss that is not computed in chunks.

    Raises:
        ValueError: names the fields, their values and the remedy.
    """
    if compiles and loss != "chunked":
        raise ValueError(
            f"loss_compile (true) compiles the loss of each chunk of tokens, and loss ({loss!r}) has no chunks; set loss "
            "to 'chunked', or loss_compile to false"
        )


def check(loss: Loss, model: ModelSpec | None = None, model_summary: ModelSummary | None = None) -> None:
    """Reject a chunked loss for a model whose loss Shardtune does not compute, as far as is known.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if loss == "full":
        return
    if model is not None and model.is_own:
        raise rejected("your own code computes the loss")
    if model_summary is not None and model_summary.loss_note is not None:
        raise rejected(model_summary.loss_note)


def rejected(why: str) -> ValueError:
    """Return the error for a model whose loss cannot be computed in chunks. `why` is the reason, as the end of the
    error message."""
    return ValueError(f"loss ('chunked') is not for this model: {why}; use 'full'")
