"""Offload of training states to host memory by DeepSpeed."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.knobs import Knob, When
from shardtune.api_schemas.strategies.fields.shared import PINNED_RATE

PIN = Knob(
    help="",
    tries=(True, False),
    when=When(on_gpu=True),
    accepts_own_values=True,
    lightest=False,
    without_term=PINNED_RATE,
)


class Offload(Schema):
    """Offload of one kind of training state (parameters or optimizer state) to host memory."""

    device: Literal["cpu"] = "cpu"
    """Device that the state is offloaded to: always the host. NVMe is omitted, since deepspeed 0.19.8 leaves no tensors
    to check once they are swapped out."""
    pin_memory: bool = True
    """Whether offloaded state is in page-locked host memory, which makes copies faster."""
    ratio: float = Field(default=1.0, gt=0, le=1)
    """Fraction of the optimizer state to offload (ZeRO stage 3 only; ignored for parameters)."""
