"""The optional columns of a measurement: what its reader must be told of the program and cannot read off the others.

`master_dtype`, `state_dtype` (Adam's moments), `reduce_dtype`, `loss_kernel`, `attention`, `optimizer_in_backward` and
`mlp_slices`; a blank one means the default, which is what `benchmarks.predictor.rows` and `benchmarks.predictor.programs` take from the row's source and notes.
"""

from dataclasses import replace
from typing import Literal

from shardtune.tuner.prediction.candidates import Dtypes, Implementation
from shardtune.tuner.prediction.model_shape import ModelShape

Row = dict[str, str]
_BYTES = {
    "float32": 4, "fp32": 4, "bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "float8": 1, "fp8": 1, "int8": 1,
    "uint8": 1,
}  # fmt: skip
_LOSSES = ("standard", "chunked", "fused")
_ATTENTIONS = ("eager", "sdpa", "flash", "flash2", "flash3")
_SWITCH = ("yes", "no")
_FLASH3 = 1.5
"""Multiple of FlashAttention-2's rate: 1.5-2.0 on an H100 (arXiv:2407.08608, abstract)."""
_CHUNKS = 8


class Misread(ValueError):
    """A column holds what nobody knows; the message names row, column, value and remedy."""


def dtypes_of(row: Row, default: Dtypes) -> Dtypes:
    """The default with what the columns say.

    Raises:
        Misread: an unknown dtype.
    """
    master = _bytes(row, "master_dtype") or default.master
    # Adam makes its moments as the masters are, unless told otherwise.
    state = _bytes(row, "state_dtype") or (master if _word(row, "master_dtype") else default.moments / 2.0)
    return replace(default, master=master, moments=2.0 * state, reduce=_bytes(row, "reduce_dtype") or default.reduce)


def program_of(row: Row, default: Implementation, shape: ModelShape) -> Implementation:
    """The default with what the columns say.

    Raises:
        Misread: an unknown loss or attention.
    """
    loss, attention = _one_of(row, "loss_kernel", _LOSSES), _one_of(row, "attention", _ATTENTIONS)
    program = default
    if loss == "standard":
        program = replace(program, loss_chunks=1)
    elif loss == "chunked":
        program = replace(program, loss_chunks=_CHUNKS)
    elif loss == "fused":
        # Head and loss in one kernel, over so many rows at a time that their logits are no larger than the head's input.
        program = replace(program, loss_chunks=max(_CHUNKS, shape.vocab // shape.hidden), keeps_logits=False)
    in_backward = _one_of(row, "optimizer_in_backward", _SWITCH)
    if in_backward:
        program = replace(program, optimizer_in_backward=in_backward == "yes")
    if attention:
        kernel: Literal["eager", "flash"] = "eager" if attention == "eager" else "flash"
        rate = _FLASH3 if attention == "flash3" else 1.0
        program = replace(program, attention=kernel, attention_rate=rate)
    return program


def candidate_of(row: Row, default: dict[str, float]) -> dict[str, float]:
    """The default with what the columns say.

    Raises:
        Misread: a number of slices that is none.
    """
    slices = _word(row, "mlp_slices")
    if not slices:
        return default
    if not slices.isdecimal() or int(slices) < 1:
        raise Misread(
            f"row {row['id']}: mlp_slices ({slices!r}) is no number of slices; give one from 1, or leave it blank"
        )
    return default | {"mlp_slices": int(slices)}


def has_moments(row: Row) -> bool:
    """Whether a column says how many bytes Adam's moments take."""
    return bool(_word(row, "state_dtype"))


def _word(row: Row, column: str) -> str:
    return (row.get(column) or "").strip().lower()


def _bytes(row: Row, column: str) -> int | None:
    word = _one_of(row, column, tuple(_BYTES))
    return _BYTES[word] if word else None


def _one_of(row: Row, column: str, recorded: tuple[str, ...]) -> str:
    word = _word(row, column)
    if word and word not in recorded:
        raise Misread(f"row {row['id']}: {column} ({word!r}) is unknown; use {', '.join(recorded)}, or leave it blank")
    return word
