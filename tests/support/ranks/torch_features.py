"""What the installed torch offers to ranks; not every allowed version offers all."""

from typing import Any

from torch.distributed.fsdp import FSDPModule

OWN_REDUCE_SCATTER: dict[str, Any] = (
    {"separate_reduce_scatter_group": True} if hasattr(FSDPModule, "set_separate_reduce_scatter_group") else {}
)
"""Knob of FSDP2 that torch has from 2.13 on; empty with earlier versions, which reject it."""
