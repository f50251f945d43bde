"""Offload of training states to host memory by DeepSpeed."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.knobs import Knob, When

PIN = Knob(
    help="",
    tries=(True, False),
    when=When(on_gpu=True),
    accepts_own_values=True,
    lightest=False,
)


class Offload(Schema):
    """Settings for offloading one kind of training state (parameters or optimizer state) to host memory."""

    device: Literal["cpu"] = "cpu"
    """Device to which the state is offloaded, which is always the host. NVMe is not offered: deepspeed 0.19.8 leaves no
    tensors in memory that could be checked once they are on NVMe."""
    pin_memory: bool = True
    """Whether offloaded state is kept in page-locked memory of the host, which makes copies faster."""
    ratio: float = Field(default=1.0, gt=0, le=1)
    """Fraction of the optimizer state that is offloaded. Only ZeRO stage 3 uses it, and only for the optimizer state,
    not for parameters."""
