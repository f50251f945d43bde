"""Loss in chunks of tokens in exported files: lines of `train_snippet.py`, and notes for programs that cannot express
it."""

from shardtune.api_schemas.strategies.losses import loss_words
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill, indent

_GRADIENT = (
    "# In place: autograd would have several float32 tensors of the logits' size.",
    "values = log_softmax(finished(logits, head), -1, dtype=torch.float32).exp_()",
    "rows = labels.clamp(min=0).unsqueeze(1)",
    "values.scatter_add_(1, rows, values.new_full(rows.shape, -1.0))",
    "values.mul_((grad * (labels != -100)).unsqueeze(1))",
    "slope = head.scale if head.cap is None else 1.0 - torch.tanh(logits / head.cap).square()",
    "return values.mul_(slope).to(logits.dtype)",
)
_SPLIT_GRADIENT = (
    "logits.requires_grad_()",
    "with torch.enable_grad():",
    "    (of_logits,) = torch.autograd.grad(sum_of(logits, labels, head), logits, grad)",
    "return of_logits",
)


def imports(source: ExportSource, splits_vocabulary: bool) -> list[str]:
    """Import line of `train_snippet.py` for a loss that is computed in chunks; empty for a loss over all logits at
    once."""
    names = "cross_entropy, linear, pad" if splits_vocabulary else "cross_entropy, linear, log_softmax, pad"
    # Context parallelism imports the first and the last of them.
    names = "linear, pad" if source.config.loss_compile and source.config.context_parallel == 1 else names
    return [f"from torch.nn.functional import {names}"] if is_chunked(source) else []


def is_chunked(source: ExportSource) -> bool:
    """Whether the exported configuration computes the loss in chunks of tokens."""
    return source.config.has_chunked_loss


def constants(source: ExportSource) -> list[str]:
    """Line of `train_snippet.py` that defines the number of tokens in a chunk; empty for a loss over all logits at
    once."""
    if not is_chunked(source):
        return []
    return [f"LOSS_CHUNK = {source.config.loss_chunk}  # tokens whose logits exist at once"]


def helpers(source: ExportSource, splits_vocabulary: bool) -> str:
    """Source of the functions that `train_snippet.py` defines for a loss in chunks; empty for a loss over all logits at
    once.

    `splits_vocabulary`: whether the logits are split over tensor-parallel ranks.
    """
    if not is_chunked(source):
        return ""
    if source.config.loss_compile:
        sums = fill("compiled_sums_split" if splits_vocabulary else "compiled_sums")
    else:
        sums = fill("chunked_sums", gradient=indent(_SPLIT_GRADIENT if splits_vocabulary else _GRADIENT, 4))
    # Context parallelism defines the mean of its own part.
    mean = "" if source.config.context_parallel > 1 else fill("chunked_mean")
    return fill("chunked_loss", sums=sums.rstrip("\n")) + mean


def build_lines(source: ExportSource) -> list[str]:
    """Line of `train_snippet.py` that prepares the model for a loss in chunks; empty for a loss over all logits at
    once."""
    return ["chunk_loss(model)"] if is_chunked(source) else []


def total(source: ExportSource) -> list[str]:
    """Lines of `train_snippet.py` that compute the sum of the loss over this rank's part of each sequence (context
    parallel)."""
    if is_chunked(source):
        part = "tokens[:, first : first + part]"
        return [f"total = summed_loss(model, following, input_ids={part}, position_ids=positions)"]
    return [
        "logits = model(input_ids=tokens[:, first : first + part], position_ids=positions).logits.float()",
        'total = cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=-100, reduction="sum")',
    ]


def accelerate_notes(source: ExportSource) -> list[str]:
    """Notes on a loss in chunks for a user's own script under Accelerate."""
    if not is_chunked(source):
        return []
    words = _words(source)
    if source.study.spec.model.is_own:
        return [f"{words}: see {source.shown_in}"]
    return [f"{words}: take ChunkedHead, SummedLoss, its functions and loss_of from train_snippet.py"]


def trainer_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on a loss in chunks for transformers' Trainer."""
    if not is_chunked(source):
        return ()
    return ("loss: TRL 1.16 always computes it in chunks, of a size of its own: export for trl to keep chunks",)


def lightning_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on a loss in chunks for Lightning, where the user's module computes the loss."""
    if not is_chunked(source):
        return ()
    return (f"loss: compute it in your module ({_words(source)}): see {source.shown_in}",)


def _words(source: ExportSource) -> str:
    return loss_words(source.config.loss_chunk, is_compiled=source.config.loss_compile)
