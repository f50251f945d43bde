"""Registry of the training backends that the search knows, by kind, and of all their knobs."""

from typing import Any

from shardtune.api_schemas.knobs import Knob
from shardtune.tuner.search.space.backends import ddp, fsdp1, fsdp2, zero
from shardtune.tuner.search.space.backends.record import SearchedBackend
from shardtune.tuner.search.space.legal_values import COMMON

BACKENDS: dict[str, SearchedBackend[Any]] = {
    "ddp": ddp.BACKEND,
    "zero": zero.BACKEND,
    "fsdp2": fsdp2.BACKEND,
    "fsdp1": fsdp1.BACKEND,
}
KNOBS: dict[str, Knob] = {
    **COMMON,
    **{name: knob for backend in BACKENDS.values() for name, knob in backend.knobs.items()},
}
