"""Fractions of a model's parameters that are trained, and the bytes of those that are not."""

from shardtune.api_schemas.training import quantization
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.model_shape import ModelShape

FLOAT8_BYTES = 1.0
"""Bytes of a number in float8."""


def fraction(shape: ModelShape, impl: Implementation) -> float:
    """Fraction of all parameters that are trained."""
    return impl.trainable * shape.trained_parameters / max(shape.parameters, 1)


def of_block(shape: ModelShape, impl: Implementation) -> float:
    """Fraction of a block's parameters that are trained, for a block that backward passes."""
    return impl.trainable * shape.trained_block_parameters / max(shape.block_parameters, 1)


def outside(shape: ModelShape, impl: Implementation) -> float:
    """Fraction of the parameters outside the blocks that are trained."""
    return impl.trainable * shape.trained_outside


def depth(shape: ModelShape) -> float:
    """Fraction of the model's blocks that backward passes; it skips blocks before the first trained one."""
    return shape.trained_blocks / shape.layers


def master_bytes(shape: ModelShape, d: Dtypes, impl: Implementation) -> float:
    """Mean stored bytes of a parameter, for a backend that stores trained parameters as float32 masters. With an
    adapter, frozen parameters are stored in the compute dtype, or in 4 bits (whose scales are not counted)."""
    if shape.adapter is None:
        return float(d.master)
    trained = fraction(shape, impl)
    return (d.master - d.compute) * trained + compute_bytes(shape, d)


def compute_bytes(shape: ModelShape, d: Dtypes) -> float:
    """Mean bytes of a parameter of the model as forward and backward read it: in the compute dtype, or in 4 bits."""
    return _mixed_bytes(d, shape.layers * shape.packed_parameters / max(shape.parameters, 1))


def block_bytes(shape: ModelShape, d: Dtypes) -> float:
    """Mean bytes of a parameter of one block as forward and backward read it: in the compute dtype, or in 4 bits."""
    return _mixed_bytes(d, shape.packed_parameters / max(shape.block_parameters, 1))


def gathered_bytes(shape: ModelShape, c: Candidates, d: Dtypes) -> Array:
    """Mean bytes of a parameter of the model as FSDP gathers it: as forward and backward read it, or in float8."""
    return _with_float8(compute_bytes(shape, d), c, shape.matrix_parameters / max(shape.parameters, 1))


def gathered_block_bytes(shape: ModelShape, c: Candidates, d: Dtypes) -> Array:
    """Mean bytes of a parameter of one block as FSDP gathers it: as forward and backward read it, or in float8."""
    matrices = shape.matrix_parameters / shape.layers
    return _with_float8(block_bytes(shape, d), c, matrices / max(shape.block_parameters, 1))


def scale_bytes(shape: ModelShape) -> float:
    """Bytes of the scales of a model's 4-bit weights, which no backend shards."""
    return 0.0 if shape.adapter is None else shape.layers * shape.packed_parameters * shape.adapter.scale_bytes


def unpacked_bytes(shape: ModelShape, d: Dtypes) -> float:
    """Bytes of the largest 4-bit weight when a matrix product has unpacked it, and of its scales in float32 if they
    were quantised too."""
    if shape.adapter is None:
        return 0.0
    # bitsandbytes unpacks scales, and adds their mean into a second tensor (0.50, `dequantise_blockwise`).
    of_scales = 2.0 * quantization.scale_bytes(False) if shape.adapter.has_packed_scales else 0.0
    return shape.adapter.largest_packed * (d.compute + of_scales)


def _mixed_bytes(d: Dtypes, packed: float) -> float:
    return d.compute * (1.0 - packed) + quantization.PACKED_BYTES * packed


def _with_float8(otherwise: float, c: Candidates, matrices: float) -> Array:
    """Mean bytes of a gathered parameter. `otherwise`: its bytes without float8; `matrices`: fraction of the elements that
    are in matrices of blocks, which are gathered in float8 with one byte each."""
    in_float8 = c.float8_gather * min(matrices, 1.0)
    mean: Array = otherwise * (1.0 - in_float8) + FLOAT8_BYTES * in_float8
    return mean
