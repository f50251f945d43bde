"""Fractions of a model's parameters that are trained, and the bytes of those that are not."""

from shardtune.tuner.prediction.candidates import Dtypes, Implementation
from shardtune.tuner.prediction.model_shape import ModelShape


def fraction(shape: ModelShape, impl: Implementation) -> float:
    """Fraction of all parameters that are trained."""
    return impl.trainable * shape.trained_parameters / max(shape.parameters, 1)


def of_block(shape: ModelShape, impl: Implementation) -> float:
    """Fraction of the parameters of a block that are trained, in the blocks that backward passes."""
    return impl.trainable * shape.trained_block_parameters / max(shape.block_parameters, 1)


def outside(shape: ModelShape, impl: Implementation) -> float:
    """Fraction of the parameters in no block that are trained."""
    return impl.trainable * shape.trained_outside


def depth(shape: ModelShape) -> float:
    """Fraction of the blocks that backward passes."""
    return shape.trained_blocks / shape.layers


def master_bytes(shape: ModelShape, d: Dtypes, impl: Implementation) -> float:
    """Mean bytes of a parameter where a backend keeps trained parameters as float32 masters; with an adapter, frozen
    parameters have the dtype of computation."""
    if shape.adapter is None:
        return float(d.master)
    trained = fraction(shape, impl)
    return d.master * trained + d.compute * (1.0 - trained)
