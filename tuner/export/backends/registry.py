"""Registry of the training backends that the exports know, by kind."""

from collections.abc import Mapping
from typing import Any

from shardtune.tuner.export.backends import ddp, fsdp1, fsdp2, zero
from shardtune.tuner.export.backends.record import ExportedBackend

Backends = Mapping[str, ExportedBackend[Any]]

BACKENDS: Backends = {
    "ddp": ddp.BACKEND,
    "zero": zero.BACKEND,
    "fsdp2": fsdp2.BACKEND,
    "fsdp1": fsdp1.BACKEND,
}
