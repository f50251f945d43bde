"""Knob with which FSDP2 gathers weights in float8, and the configurations that cannot have it."""

from collections.abc import Mapping
from typing import Any

from shardtune.api_schemas.knobs import Knob, Lost, When, Written
from shardtune.api_schemas.training.float8 import Float8Recipe

NAME = "float8_gather"
"""Name of the knob."""
RECIPE: Float8Recipe = "tensorwise"
"""Float8 scaling whose weights can be gathered in float8: torchao gathers one scale for a weight, not one for each row."""
NEEDS = f"it needs workload.float8 ({RECIPE!r}), whose weights have one scale each"
"""End of an error message: the workload that gathers in float8 require."""
ALONE = "it needs dp_shard above 1: one rank gathers nothing"
"""End of an error message: the number of shards that gathers in float8 require."""
OFFLOADED = "it needs cpu_offload (false): scales are computed where the shards are"
"""End of an error message: the place of the shards that gathers in float8 require."""
GROUPED = "it needs reshard_after_forward true or false: torch gathers a subclass from no group (2.13)"
"""End of an error message: the treatment of gathered weights that gathers in float8 require."""
UNEVEN = "it needs dp_shard to divide the rows of each linear layer: torchao pads no shard (0.18)"
"""End of an error message: the sizes of shards that gathers in float8 require."""

FLOAT8_GATHER = Knob(
    help="FSDP2: weights of the blocks' linear layers are cast to float8 before they are gathered, not after.",
    name="float8 gathers",
    tries=(False, True),
    when=When(above={"dp_shard": 1}),
    lightest=True,
    exports={
        "script": Written("`enable_fsdp_float8_all_gather`, `precompute_float8_dynamic_scale_for_fsdp`"),
        "accelerate": Written("a line of your script"),
        "training_arguments": Written("a note: a line of your script"),
        "torchtitan": Lost("has no float8 gathers (0.3)"),
        "lightning": Written("a note: a line of your module"),
    },
    when_text="`workload.float8` is `tensorwise`, `dp_shard` is above 1 and divides the weights' rows, "
    "`reshard_after_forward` is no number, no `cpu_offload`",
    upstream="torchao's `enable_fsdp_float8_all_gather`; Accelerate's key has this name too",
)


def check(gathers: bool, shards: int, reshard: bool | int, offloads: bool) -> None:
    """Reject gathers in float8 for a mesh or shards that do not allow them.

    Raises:
        ValueError: names the fields, their values and the remedy.
    """
    if not gathers:
        return
    if shards == 1:
        raise ValueError(
            f"{NAME} (true) with dp_shard (1) would gather nothing; set {NAME} to false, or dp_shard above 1"
        )
    if not isinstance(reshard, bool):
        raise ValueError(
            f"{NAME} (true) with reshard_after_forward ({reshard}) would gather from groups of ranks, which torch lacks for float8 "
            f"shards (2.13); set reshard_after_forward to true or false, or {NAME} to false"
        )
    if offloads:
        raise ValueError(
            f"{NAME} (true) with cpu_offload (true) would compute scales on the host; set one of them to false"
        )


def check_training(gathers: bool, recipe: Float8Recipe | None) -> None:
    """Reject gathers in float8 for a workload whose weights have no float8 form with one scale.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if gathers and recipe != RECIPE:
        raise ValueError(f"{NAME} (true) with workload.float8 ({_shown(recipe)}): {NEEDS}; set {NAME} to false")


def check_limits(knobs: Mapping[str, object], recipe: Float8Recipe | None) -> None:
    """Reject search limits that leave only gathers in float8, for a workload that cannot have them.

    Raises:
        ValueError: names the knob, its value and the remedy.
    """
    values = _values(knobs)
    # By identity: 1 and "true" are no values of the knob, and rejected as such.
    if recipe != RECIPE and values and all(value is True for value in values):
        raise ValueError(f"space.knobs.{NAME} (true) with workload.float8 ({_shown(recipe)}): {NEEDS}; leave it out")


def dropped_note(knobs: Mapping[str, object], recipe: Float8Recipe | None) -> tuple[str, ...]:
    """Return a note that the search leaves out gathers in float8 although its limits name them; empty if it leaves out
    nothing."""
    if recipe == RECIPE or not any(value is True for value in _values(knobs)):
        return ()
    return (f"space.knobs.{NAME} (true) with workload.float8 ({_shown(recipe)}): {NEEDS}; it is not searched",)


def uneven(name: str, rows: int, shards: int) -> ValueError:
    """Return the error for a linear layer, given by name and number of rows, that `shards` ranks cannot divide evenly."""
    return ValueError(
        f"{NAME} (true) with dp_shard ({shards}) needs weights whose rows it divides, and {name} of the blocks has {rows}: "
        f"torchao pads no shard (0.18); set {NAME} to false, or choose another dp_shard"
    )


def _shown(recipe: Float8Recipe | None) -> str:
    return "none" if recipe is None else repr(recipe)


def _values(knobs: Mapping[str, Any]) -> tuple[object, ...]:
    stated = knobs.get(NAME, False)
    return tuple(stated) if isinstance(stated, list | tuple) else (stated,)
