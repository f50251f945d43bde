"""Float8 training of a model's linear layers by torchao: what it computes, and which workloads it can train."""

from collections.abc import Mapping
from typing import Literal

from shardtune.api_schemas.training.adapters import AdapterSchema
from shardtune.api_schemas.training.sample_lengths import SampleLengths

Float8Recipe = Literal["tensorwise", "rowwise"]
"""Scaling of float8 numbers, by torchao's names: one scale for a whole tensor (`tensorwise`), or one for each of its
rows or columns (`rowwise`)."""
FLOAT8_SINCE = 2
"""First protocol version whose workers train in float8."""
FLOAT8_PACKAGE = "torchao"
"""Python package with which ranks train in float8."""
FLOAT8_EXTRA = "fp8"
"""Name of the extra of `shardtune` that installs the package for float8."""
CONSIDERED: Mapping[str, Float8Recipe] = {"fp8": "tensorwise", "fp8-rowwise": "rowwise"}
"""Scaling of float8 numbers, by the name of the recipe with which a study considers it, such as `fp8-rowwise`."""
MULTIPLE = 16
"""Number of which each dimension of a float8 matrix product must be a multiple (a requirement of cuBLAS,
`torch._scaled_mm`)."""


def title(recipe: Float8Recipe) -> str:
    """Name of a float8 recipe for people."""
    return f"float8 ({recipe})"


def check_workload(
    recipe: Float8Recipe | None, sequence_length: int, adapter: AdapterSchema | None, data: SampleLengths | None
) -> None:
    """Reject a workload that cannot be trained in float8, or for which no test has shown that all backends train
    equally in float8.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if recipe is None:
        return
    stated = f"float8 ({recipe!r})"
    if sequence_length % MULTIPLE:
        lower = sequence_length // MULTIPLE * MULTIPLE
        nearest = f"{lower} or {lower + MULTIPLE}" if lower else f"{MULTIPLE}"
        raise ValueError(
            f"sequence_length ({sequence_length}) with {stated}: float8 products need multiples of {MULTIPLE}; "
            f"try {nearest}, or leave out float8"
        )
    if adapter is not None:
        raise ValueError(
            f"adapter ({adapter.describe()}) beside {stated} was not compared over backends; leave out one of them"
        )
    if data is not None:
        raise ValueError(
            f"data ({data.describe()}) beside {stated} would scale real tokens by padding; leave out one of them"
        )
